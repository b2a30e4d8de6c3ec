/* Each time that it is asked, by a byte of input: 100 blocks of malloc that go back by PREFIX_free, 100 of PREFIX_malloc that go
   back by free. The prefix is its argument. */
#include "keep.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *(*other_malloc)(size_t);
static void (*other_free)(void *);

static void *find(const char *prefix, const char *name) {
    char whole[100];
    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    void *function = dlsym(RTLD_DEFAULT, whole);
    if (!function)
        exit(1);
    return function;
}

NOINLINE static void work(void) {
    for (int i = 0; i < 100; i++) {
        other_free(keep(malloc(100)));
        free(keep(other_malloc(200)));
    }
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 1;
    *(void **)&other_malloc = find(argv[1], "malloc");
    *(void **)&other_free = find(argv[1], "free");
    for (char byte; write(1, "asked\n", 6) == 6 && read(0, &byte, 1) == 1;)
        work();
}
