/* argv[1] thousand allocations from argv[2] different stacks: a trace of many megabytes. */
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>

static NOINLINE void *down(unsigned path, int depth, size_t size);

static NOINLINE void *left(unsigned path, int depth, size_t size) {
    void *block = down(path >> 1, depth - 1, size);
    __asm__ volatile("" : : : "memory");
    return block;
}

static NOINLINE void *right(unsigned path, int depth, size_t size) {
    void *block = down(path >> 1, depth - 1, size);
    __asm__ volatile("" : : : "memory");
    return block;
}

static NOINLINE void *down(unsigned path, int depth, size_t size) {
    void *block = depth == 0 ? keep(malloc(size)) : path & 1 ? left(path, depth, size) : right(path, depth, size);
    __asm__ volatile("" : : : "memory");
    return block;
}

int main(int argc, char **argv) {
    unsigned thousands = argc > 1 ? (unsigned)atoi(argv[1]) : 100, stacks = argc > 2 ? (unsigned)atoi(argv[2]) : 1024;
    enum { RING = 4096 };
    static void *ring[RING];
    unsigned state = 1;
    for (unsigned i = 0; i < thousands * 1000; i++) {
        state = state * 1664525 + 1013904223;
        free(ring[state >> 20]);
        ring[state >> 20] = down((state >> 8) % stacks, 12, (state >> 12) % 500);
    }
    printf("flooded\n");
    return 0;
}
