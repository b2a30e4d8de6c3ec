/* An allocator of the program's own whose malloc gets blocks from its calloc, far down the stack, and whose realloc is made of both. */
#include "keep.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { ROOM = 8 << 20, HEAD = 16 };
static _Alignas(16) char room[ROOM];
static size_t used, frees;

NOINLINE void *calloc(size_t count, size_t size) {
    size_t bytes = (count * size + HEAD + 15) & ~(size_t)15;
    if (used + bytes > ROOM)
        return NULL;
    char *block = room + used;
    used += bytes;
    memcpy(block, &size, sizeof size);
    return block + HEAD;
}

NOINLINE static void *helper(size_t size) {
    char much[2000];
    keep(much);
    void *block = calloc(1, size);
    keep(much);
    return block;
}

NOINLINE void *malloc(size_t size) {
    char much[1500];
    keep(much);
    void *block = helper(size);
    keep(much);
    return block;
}

NOINLINE void free(void *block) {
    if (block)
        frees++;
}

NOINLINE void *realloc(void *old, size_t size) {
    void *block = malloc(size);
    size_t before = 0;
    if (old)
        memcpy(&before, (char *)old - HEAD, sizeof before);
    if (block)
        memcpy(block, old, before < size ? before : size);
    free(old);
    return block;
}

int main(void) {
    for (int i = 0; i < 1000; i++) {
        void *block = keep(malloc(100));
        block = keep(realloc(block, 200));
        free(block);
        free(keep(calloc(3, 50)));
    }
    setvbuf(stdout, NULL, _IONBF, 0);
    puts("done");
    return 0;
}
