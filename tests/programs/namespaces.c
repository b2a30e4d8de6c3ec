/* A library that dlmopen loads into a namespace of its own, with a libc of its own: it calls back into the program, which
 * allocates then, and allocates by its own libc. Argument: the library. */
#define _GNU_SOURCE
#include "keep.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *held[7];

NOINLINE static int called_back(int i) {
    held[i] = keep(malloc(1000));
    __asm__ volatile("" : : : "memory");
    return i;
}

NOINLINE static void in_namespace(const char *path) {
    void *library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
    if (!library) {
        puts(dlerror());
        return;
    }
    int (*through)(int (*)(int), int) = (int (*)(int (*)(int), int))dlsym(library, "namespace_through");
    void *(*make)(int) = (void *(*)(int))dlsym(library, "namespace_make");
    void (*drop)(void *) = (void (*)(void *))dlsym(library, "namespace_drop");
    int sum = 0;
    for (int i = 0; i < 7; i++)
        sum += through(called_back, i);
    void *blocks[11];
    for (int i = 0; i < 11; i++)
        blocks[i] = make(500);
    for (int i = 0; i < 8; i++)
        drop(blocks[i]);
    printf("%d\n", sum);
    dlclose(library);
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    for (int i = 0; i < 2; i++) {
        in_namespace(argv[1]);
        for (int j = 0; j < 7; j++)
            free(held[j]);
    }
    return 0;
}
