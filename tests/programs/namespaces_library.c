/* The library of namespaces.c. */
#include "keep.h"
#include <stdlib.h>

NOINLINE int namespace_through(int (*call)(int), int argument) {
    int result = call(argument);
    __asm__ volatile("" : : : "memory");
    return result;
}

NOINLINE void *namespace_make(int size) {
    void *block = keep(malloc((size_t)size));
    __asm__ volatile("" : : : "memory");
    return block;
}

NOINLINE void namespace_drop(void *block) {
    free(block);
    __asm__ volatile("" : : : "memory");
}
