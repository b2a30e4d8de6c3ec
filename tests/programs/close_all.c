/* Closes every descriptor but its output, then allocates; then that too. argv[1] is how. */
#define _GNU_SOURCE
#include "keep.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    for (int i = 0; i < 10; i++)
        keep(malloc(10));
    const char *how = argc > 1 ? argv[1] : "range";
    if (strcmp(how, "range") == 0) {
        close_range(3, ~0u, 0);
    } else if (strcmp(how, "loop") == 0) {
        long most = sysconf(_SC_OPEN_MAX);
        for (long fd = 3; fd < most; fd++)
            close((int)fd);
    } else {
        DIR *all = opendir("/proc/self/fd");
        struct dirent *entry;
        while ((entry = readdir(all)))
            if (atoi(entry->d_name) > 2 && atoi(entry->d_name) != dirfd(all))
                close(atoi(entry->d_name));
        closedir(all);
    }
    for (int i = 0; i < 5000; i++)
        keep(malloc(20));
    printf("closed by %s, the next is %d\n", how, dup(1));
    fflush(stdout);
    close_range(0, ~0u, 0);
    for (int i = 0; i < 5000; i++)
        keep(malloc(30));
    return 6;
}
