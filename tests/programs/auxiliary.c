/* What a program finds behind its environment, as it was and after it has executed itself: the auxiliary vector. And what libc says to an fexecve
 * without an environment. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv, char **environment) {
    char **end = environment;
    while (*end)
        end++;
    int entries = 0, strange = 0;
    unsigned long page = 0;
    for (ElfW(auxv_t) *entry = (ElfW(auxv_t) *)(end + 1); entry->a_type != AT_NULL && entries < 100; entry++) {
        entries++;
        if (entry->a_type == AT_PAGESZ)
            page = entry->a_un.a_val;
        strange += entry->a_type > 100;
    }
    printf("%d variables, pages of %lu, %d strange\n", (int)(end - environment), page, strange);
    fflush(stdout);
    char *again[] = {argv[0], "again", NULL};
    if (argc == 1)
        execv("/proc/self/exe", again);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int result = fexecve(file, again, NULL);
    printf("%d %s\n", result, strerror(errno));
    return 0;
}
