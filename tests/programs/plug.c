/* A library for dlopen_loop.c, built twice: as plug_a (NAME a, COUNT 3) and plug_b (NAME b, COUNT 5). */
#include "keep.h"
#include <stdlib.h>

#define GLUE(a, b) a##b
#define NAMED(prefix, name) GLUE(prefix, name)

static void *held;

NOINLINE static void *NAMED(inner_, NAME)(int size) {
    void *block = malloc((size_t)size);
    __asm__ volatile("" : : : "memory");
    return block;
}

/* Two sites that are known by name. */
NOINLINE void *NAMED(plug_make_, NAME)(int size) {
    void *block = NAMED(inner_, NAME)(size);
    __asm__ volatile("" : : : "memory");
    return block;
}

__attribute__((constructor)) static void begin(void) {
    for (int i = 0; i < COUNT; i++)
        free(keep(malloc(50)));
    held = keep(malloc(200));
}

__attribute__((destructor)) static void end(void) {
    free(held);
}
