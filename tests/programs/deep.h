/* Blocks from stacks that a number says: a frame of `left` or `right` for each of its lowest bits. */
#ifndef DEEP_H
#define DEEP_H
#include "keep.h"
#include <stdint.h>
#include <stdlib.h>

static NOINLINE void *down(uint64_t path, int depth, size_t size);

static NOINLINE void *left(uint64_t path, int depth, size_t size) {
    void *block = down(path >> 1, depth - 1, size);
    __asm__ volatile("" : : : "memory");
    return block;
}

static NOINLINE void *right(uint64_t path, int depth, size_t size) {
    void *block = down(path >> 1, depth - 1, size);
    __asm__ volatile("" : : : "memory");
    return block;
}

static NOINLINE void *down(uint64_t path, int depth, size_t size) {
    void *block = depth == 0 ? keep(malloc(size)) : path & 1 ? left(path, depth, size) : right(path, depth, size);
    __asm__ volatile("" : : : "memory");
    return block;
}
#endif
