// A malloc in front of libc's that puts a header before each block, and leaves the functions for aligned blocks to libc.
#include "keep.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void __libc_free(void *block);

enum { HEADER = 16, BLOCKS = 1000, AGAIN = 100 };

NOINLINE void *malloc(size_t size) {
    char *block = __libc_malloc(size + HEADER);
    if (!block)
        return NULL;
    *(size_t *)block = size;
    return block + HEADER;
}

NOINLINE void free(void *block) {
    if (block)
        __libc_free((char *)block - HEADER);
}

NOINLINE void *calloc(size_t count, size_t size) {
    void *block = malloc(count * size);
    return block ? memset(block, 0, count * size) : NULL;
}

NOINLINE void *realloc(void *old, size_t size) {
    void *block = malloc(size);
    if (old && block) {
        size_t had = ((size_t *)old)[-2];
        memcpy(block, old, had < size ? had : size);
    }
    free(old);
    return block;
}

int main(void) {
    static void *held[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        held[i] = keep(malloc(1000));
    for (int i = 0; i < BLOCKS; i++)
        free(held[i]);
    for (int i = 0; i < AGAIN; i++)
        free(keep(realloc(keep(malloc(10)), 20)));
    if (write(STDOUT_FILENO, "done\n", 5) != 5)
        return 1;
    _exit(0);
}
