/* Buffers that grow by realloc. Says how many calls gave a block, and how many bytes had to move. */
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>

static unsigned long calls, copied;

static NOINLINE void *grow(void *old, size_t before, size_t after) {
    size_t address = (size_t)old;
    void *grown = keep(realloc(old, after));
    calls++;
    if ((size_t)grown != address)
        copied += before < after ? before : after;
    return grown;
}

int main(void) {
    void *first = keep(malloc(16)), *second = keep(malloc(16));
    size_t size = 16;
    /* By turns, so that one is in the other's way. */
    for (int step = 0; step < 10; step++) {
        first = grow(first, size, 2 * size);
        second = grow(second, size, 2 * size);
        size *= 2;
    }
    first = grow(first, size, 8);
    free(first);
    free(second);
    printf("%lu %lu\n", calls, copied);
    return 0;
}
