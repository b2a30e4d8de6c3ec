/* An allocator of the program's own that gives blocks of 8 bytes side by side, and whose calloc and realloc call its malloc. With "8":
   a million blocks of 8 bytes, all given back; with "c": 200,000 by calloc and as many by realloc, all given back, of 100 bytes. */
#define _GNU_SOURCE
#include "keep.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SMALL = 8, LARGE = 128, COUNT = 4096 };

static char small[COUNT * SMALL] __attribute__((aligned(16))), large[COUNT * LARGE] __attribute__((aligned(16)));
static uint16_t free_small[COUNT], free_large[COUNT];
static int small_left = -1, large_left = -1;

static void begin(void) {
    for (small_left = large_left = 0; small_left < COUNT; small_left++, large_left++)
        free_small[small_left] = free_large[small_left] = (uint16_t)small_left;
}

void *malloc(size_t size) {
    if (small_left < 0)
        begin();
    if (size <= SMALL)
        return small_left ? small + free_small[--small_left] * SMALL : NULL;
    return size <= LARGE && large_left ? large + free_large[--large_left] * LARGE : NULL;
}

void free(void *block) {
    char *at = block;
    if (at >= small && at < small + sizeof small)
        free_small[small_left++] = (uint16_t)((at - small) / SMALL);
    else if (at >= large && at < large + sizeof large)
        free_large[large_left++] = (uint16_t)((at - large) / LARGE);
}

NOINLINE void *calloc(size_t count, size_t size) {
    void *block = malloc(count * size);
    return block ? memset(block, 0, count * size) : NULL;
}

NOINLINE void *realloc(void *block, size_t size) {
    void *other = malloc(size);
    if (block && other) {
        memcpy(other, block, size < SMALL ? size : SMALL);
        free(block);
    }
    return other;
}

int main(int argc, char **argv) {
    int of_8 = argc > 1 && *argv[1] == '8';
    for (int i = 0; of_8 && i < 1000; i++) {
        void *blocks[1000];
        for (int n = 0; n < 1000; n++)
            blocks[n] = keep(malloc(SMALL));
        for (int n = 0; n < 1000; n++)
            free(blocks[n]);
    }
    for (int i = 0; !of_8 && i < 200000; i++)
        free(keep(realloc(keep(calloc(10, 10)), 100)));
    fputs("done\n", stderr);
    return 0;
}
