/* Has an allocator with a prefix that it exports to nobody, made of malloc: each block is one of both heaps. With an argument it
   does its work each time that it is asked, by a byte of input, and says so. */
#include "keep.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

NOINLINE void *own_malloc(size_t size) {
    return keep(malloc(size + 16));
}

NOINLINE void own_free(void *block) {
    free(keep(block));
}

NOINLINE void *own_calloc(size_t count, size_t size) {
    void *block = own_malloc(count * size);
    return block ? memset(block, 0, count * size) : NULL;
}

NOINLINE void *own_realloc(void *old, size_t size) {
    void *block = own_malloc(size);
    if (old)
        own_free(old);
    return block;
}

NOINLINE void *own_memalign(size_t alignment, size_t size) {
    return keep(aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment));
}

static void *work(void *last) {
    for (int i = 0; i < 100; i++) {
        own_free(own_malloc(10));
        own_free(own_calloc(3, 7));
        last = own_realloc(last, 40 + i);
        own_free(own_memalign(64, 100));
    }
    own_free(NULL);
    return last;
}

int main(int argc, char **argv) {
    (void)argv;
    void *last = NULL;
    for (char byte = 0; argc > 1; last = work(last))
        if (write(1, "asked\n", 6) != 6 || read(0, &byte, 1) != 1)
            return 0;
    last = work(last);
    printf("done\n");
    return last == NULL;
}
