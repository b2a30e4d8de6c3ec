/* An allocator of the program's own, in place of libc's. */
#define _GNU_SOURCE
#include "keep.h"
#include <stdio.h>
#include <string.h>

static char heap[64 << 20] __attribute__((aligned(16)));
static size_t used;
static long calls;

void *malloc(size_t size) {
    size_t at = __atomic_fetch_add(&used, ((size + 15) & ~(size_t)15) + 16, __ATOMIC_RELAXED);
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    if (at + size + 16 > sizeof heap)
        return NULL;
    *(size_t *)(heap + at) = size;
    return heap + at + 16;
}

void free(void *block) {
    (void)block;
}

void *calloc(size_t count, size_t size) {
    return malloc(count * size);
}

void *realloc(void *block, size_t size) {
    void *other = malloc(size);
    if (block && other) {
        size_t before = ((size_t *)block)[-2];
        memcpy(other, block, before < size ? before : size);
    }
    return other;
}

int main(void) {
    char *text = malloc(1);
    text[0] = 0;
    for (int i = 0; i < 500; i++) {
        text = realloc(text, strlen(text) + 8);
        sprintf(text + strlen(text), "%d", i % 10);
    }
    printf("%zu %d\n", strlen(text), calls > 500);
    return 0;
}
