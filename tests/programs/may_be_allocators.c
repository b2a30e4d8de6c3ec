/* Families of functions with an allocator's names that have no function for aligned blocks: some are allocators, by memory of their own or by
   pieces of malloc's, and some hand on to another. With an argument it does its work each time that it is asked, by a byte of input. */
#include "keep.h"
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define APART __attribute__((noipa))

/* Of static memory. */
static char arena[1 << 20];
static size_t arena_used;

APART void *arena_malloc(size_t size) {
    if (arena_used + size + 32 > sizeof arena)
        arena_used = 0;
    size_t *header = (size_t *)(arena + arena_used);
    arena_used += (size + 31) & ~(size_t)15;
    *header = size;
    return header + 2;
}
APART void arena_free(void *block) {
    if (block)
        ((size_t *)block)[-2] = 0;
}
APART void *arena_calloc(size_t count, size_t size) {
    return memset(arena_malloc(count * size), 0, count * size);
}
APART void *arena_realloc(void *old, size_t size) {
    void *block = arena_malloc(size);
    if (old) {
        size_t known = ((size_t *)old)[-2];
        memcpy(block, old, known < size ? known : size);
        arena_free(old);
    }
    return block;
}

/* Of a mapping, with no function but these two. */
APART void *mapped_malloc(size_t size) {
    static char *free_memory;
    static size_t left;
    if (left < size + 16) {
        left = 1 << 20;
        free_memory = mmap(NULL, left, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    char *block = free_memory;
    free_memory += (size + 15) & ~(size_t)15;
    left -= (size + 15) & ~(size_t)15;
    return block;
}
APART void mapped_free(void *block) { keep(block); }

/* Small blocks of pieces that it gets from malloc, large ones one by one. */
struct piece {
    size_t is_large, size;
};
APART void *pieces_malloc(size_t size) {
    static char *piece;
    static size_t left;
    bool is_large = size >= 4096;
    size_t whole = (size + sizeof(struct piece) + 15) & ~(size_t)15;
    if (!is_large && left < whole)
        piece = malloc(left = 1 << 16);
    struct piece *block = is_large ? malloc(whole) : (void *)piece;
    if (!is_large) {
        piece += whole;
        left -= whole;
    }
    *block = (struct piece){is_large, size};
    return block + 1;
}
APART void pieces_free(void *block) {
    struct piece *header = (struct piece *)block - 1;
    if (header->is_large)
        free(header);
}

/* Of static memory, with a node of malloc's for each block, which it keeps for the next one. */
static void *kept;

APART void *nodes_malloc(size_t size) {
    static char memory[1 << 20];
    static size_t used;
    if (used + size + 16 > sizeof memory)
        used = 0;
    void **block = (void **)(memory + used);
    used += (size + 23) & ~(size_t)15;
    *block = kept ? kept : malloc(24);
    kept = NULL;
    return block + 1;
}
APART void nodes_free(void *block) { kept = ((void **)block)[-1]; }

/* Those that hand on: to malloc with a header, or without; to another family; with the size behind a number, or behind a pool. */
APART void *header_malloc(size_t size) {
    size_t *block = malloc(size + 16);
    *block = size;
    return block + 2;
}
APART void header_free(void *block) { free(block ? (size_t *)block - 2 : NULL); }
APART void *header_calloc(size_t count, size_t size) {
    size_t *block = calloc(1, count * size + 16);
    *block = count * size;
    return block + 2;
}
APART void *header_realloc(void *old, size_t size) {
    size_t *block = realloc(old ? (size_t *)old - 2 : NULL, size + 16);
    *block = size;
    return block + 2;
}

APART void *plain_malloc(size_t size) { return malloc(size); }
APART void plain_free(void *block) { free(block); }

APART void *aligned_malloc(size_t size) { return aligned_alloc(64, (size + 63) / 64 * 64); }
APART void aligned_free(void *block) { free(block); }

APART void *outer_malloc(size_t size) { return arena_malloc(size + 8); }
APART void outer_free(void *block) { arena_free(block); }

/* With a node of another family's, after the block; with a block that grows; with a large frame; with memory of its own for the first block. */
static void *nodes[1000];
APART void *tracked_malloc(size_t size) {
    static int count;
    void *block = malloc(size);
    nodes[count++ % 1000] = arena_malloc(16);
    return block;
}
APART void tracked_free(void *block) {
    static int count;
    arena_free(nodes[count++ % 1000]);
    free(block);
}

APART void *grown_malloc(size_t size) { return realloc(keep(malloc(1)), size); }
APART void grown_free(void *block) { free(block); }

APART void *deep_malloc(size_t size) {
    char frame[100000];
    keep(frame);
    return malloc(size);
}
APART void deep_free(void *block) { free(block); }

static char first[256];
APART void *early_malloc(size_t size) {
    static bool is_later;
    if (is_later)
        return malloc(size);
    is_later = true;
    return first;
}
APART void early_free(void *block) {
    if (block != first)
        free(block);
}

/* From memory of its own, and later from malloc. */
APART void *turning_malloc(size_t size) {
    static char memory[300 * 128];
    static size_t used;
    if (used == sizeof memory)
        return malloc(size);
    used += 128;
    return memory + used - 128;
}
APART void turning_free(void *block) { keep(block); }

/* One that leaves the call of another by a jump. */
static jmp_buf back;
APART void *left_malloc(size_t size) {
    keep(&size);
    longjmp(back, 1);
}
APART void left_free(void *block) { keep(block); }
APART void *leaving_malloc(size_t size) {
    void *volatile block = malloc(size);
    if (!setjmp(back))
        left_malloc(8);
    return block;
}
APART void leaving_free(void *block) { free(block); }

/* With something else before the size. */
APART void *tagged_malloc(unsigned tag, size_t size) { return malloc(size + (tag & 1)); }
APART void tagged_free(void *block) { free(block); }

APART void *numbered_malloc(int number, size_t size) { return malloc(size + (size_t)number); }
APART void numbered_free(int number, void *block) { free((char *)block + number - number); }

struct pool {
    size_t blocks;
};
APART void *pool_malloc(struct pool *pool, size_t size) {
    pool->blocks++;
    return malloc(size);
}
APART void pool_free(struct pool *pool, void *block) {
    pool->blocks--;
    free(block);
}

NOINLINE static void by_arena(void) {
    void *last = NULL;
    for (int i = 0; i < 100; i++) {
        arena_free(keep(arena_malloc(100)));
        arena_free(keep(arena_calloc(3, 7)));
        last = arena_realloc(last, 40 + i);
        outer_free(keep(outer_malloc(200)));
    }
    arena_free(last);
    keep(arena_malloc(1000));
}

NOINLINE static void by_malloc(void) {
    early_free(early_malloc(100));
    for (int i = 0; i < 100; i++) {
        tracked_free(keep(tracked_malloc(100)));
        early_free(keep(early_malloc(100)));
    }
    for (int i = 0; i < 6300; i++)
        turning_free(keep(turning_malloc(100)));
    for (int i = 0; i < 6000; i++) {
        header_free(keep(header_realloc(keep(header_malloc(100)), 200)));
        header_free(keep(header_calloc(3, 7)));
    }
    for (int i = 0; i < 10; i++) {
        plain_free(keep(plain_malloc(100)));
        grown_free(keep(grown_malloc(100)));
        deep_free(keep(deep_malloc(100)));
        leaving_free(keep(leaving_malloc(100)));
        tagged_free(keep(tagged_malloc(0x4d454d31, 100)));
        aligned_free(keep(aligned_malloc(100)));
    }
}

NOINLINE static long work(void) {
    void *large[20];
    for (int i = 0; i < 20; i++)
        large[i] = keep(pieces_malloc(5000));
    for (int i = 0; i < 1000; i++)
        pieces_free(keep(pieces_malloc(50)));
    for (int i = 0; i < 10; i++)
        pieces_free(large[i]);
    for (int i = 0; i < 300; i++) {
        mapped_free(keep(mapped_malloc(300)));
        nodes_free(keep(nodes_malloc(100)));
    }
    by_arena();
    by_malloc();
    struct pool pool = {0};
    for (int i = 0; i < 10; i++) {
        numbered_free(3, keep(numbered_malloc(3, 100)));
        keep(pool_malloc(&pool, 100));
        pool_free(&pool, keep(pool_malloc(&pool, 100)));
    }
    return (long)pool.blocks;
}

int main(int argc, char **argv) {
    (void)argv;
    for (char byte = 0; argc > 1; work())
        if (write(1, "asked\n", 6) != 6 || read(0, &byte, 1) != 1)
            return 0;
    printf("%s\n", work() == 10 ? "done" : "wrong");
}
