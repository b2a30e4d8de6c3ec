/* An allocator of the program's own that gives nothing back: its free does nothing at all. */
#include "keep.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(16) char room[1 << 20];
static size_t used;

NOINLINE void *malloc(size_t size) {
    size = (size + 15) & ~(size_t)15;
    if (used + size > sizeof room)
        return NULL;
    used += size;
    return room + used - size;
}

#ifdef __x86_64__
/* Other code begins right behind it. */
__asm__(".text\n"
        ".globl free\n"
        ".type free, @function\n"
        "free: ret\n"
        ".size free, . - free\n"
        ".globl behind_free\n"
        ".type behind_free, @function\n"
        "behind_free: mov %rdi, %rax\n"
        "ret\n"
        ".size behind_free, . - behind_free\n");
void *behind_free(void *);
#else
NOINLINE void free(void *block) {
    keep(block);
}
static void *behind_free(void *block) {
    return block;
}
#endif

NOINLINE void *calloc(size_t count, size_t size) {
    void *block = malloc(count * size);
    return block ? memset(block, 0, count * size) : NULL;
}

NOINLINE void *realloc(void *old, size_t size) {
    void *block = malloc(size);
    return old && block ? memcpy(block, old, size < 100 ? size : 100) : block;
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < 50; i++)
        free(behind_free(malloc(100)));
    puts("done");
    return 0;
}
