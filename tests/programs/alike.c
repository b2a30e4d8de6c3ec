// Functions with the names of allocators' that are none: other arguments, on the stack too, and other results.
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define APART NOINLINE __attribute__((noclone))

static long sum;
static double weight;

/* Seven arguments: the last lies on the stack. */
#define MORE const char *file, int line, const char *function, int tag, int flags, int extra
#define THEM "file", 1, "function", 2, 3, 4

APART void *debug_malloc(size_t size, MORE);
APART void *debug_malloc(size_t size, MORE) {
    sum += extra + line + tag + flags + (long)strlen(file) + (long)strlen(function);
    return malloc(size);
}
APART void *debug_calloc(size_t count, size_t size, MORE) {
    sum += extra + line + tag + flags + (long)strlen(file) + (long)strlen(function);
    return calloc(count, size);
}
APART void *debug_realloc(void *block, size_t size, MORE) {
    sum += extra + line + tag + flags + (long)strlen(file) + (long)strlen(function);
    return realloc(block, size);
}
APART void debug_free(void *block, size_t size, MORE) {
    sum += extra + line + tag + flags + (long)strlen(file) + (long)strlen(function) + (long)size;
    free(block);
}
APART void *debug_memalign(size_t alignment, size_t size, MORE) {
    sum += extra + line + tag + flags + (long)strlen(file) + (long)strlen(function);
    return aligned_alloc(alignment, size);
}

/* Numbers with fractions, and a structure by value. */
struct four {
    long words[4];
};

APART void *weighed_malloc(size_t size, double by) {
    weight += by;
    return malloc(size);
}
APART void *weighed_calloc(size_t count, size_t size, struct four four) {
    sum += four.words[3];
    return calloc(count, size);
}
APART void *weighed_realloc(void *block, size_t size, ...) { return realloc(block, size); }
APART void weighed_free(void *block, struct four four) {
    sum += four.words[2];
    free(block);
}
APART void *weighed_memalign(size_t alignment, size_t size, long double by) {
    weight += (double)by;
    return aligned_alloc(alignment, size);
}

/* Results of two words. */
struct pair {
    void *block;
    size_t size;
};

APART struct pair pair_malloc(size_t size) { return (struct pair){malloc(size), size + 1}; }
APART struct pair pair_calloc(size_t count, size_t size) { return (struct pair){calloc(count, size), count * size}; }
APART struct pair pair_realloc(void *block, size_t size) { return (struct pair){realloc(block, size), size}; }
APART double pair_free(void *block) {
    free(block);
    return 0.5;
}
APART struct pair pair_memalign(size_t alignment, size_t size) {
    return (struct pair){aligned_alloc(alignment, size), size};
}

/* The number of a pool comes first. */
APART void *pool_malloc(int pool, size_t size) { return malloc(size + (size_t)pool); }
APART void *pool_calloc(int pool, size_t count, size_t size) { return calloc(count + (size_t)pool, size); }
APART void *pool_realloc(int pool, void *block, size_t size) { return realloc(block, size + (size_t)pool); }
APART void pool_free(int pool, void *block) {
    sum += pool;
    free(block);
}
APART int pool_posix_memalign(int pool, void **block, size_t alignment, size_t size) {
    return posix_memalign(block, alignment, size + (size_t)pool);
}

int main(void) {
    struct four four = {{1, 2, 3, 4}};
    size_t sizes = 0;
    for (int i = 0; i < 10; i++) {
        void *block = debug_realloc(keep(debug_malloc(10, THEM)), 20, THEM);
        debug_free(keep(block), 5, THEM);
        debug_free(keep(debug_calloc(3, 4, THEM)), 5, THEM);
        debug_free(keep(debug_memalign(64, 64, THEM)), 5, THEM);

        weighed_free(keep(weighed_realloc(keep(weighed_malloc(10, 0.5)), 20, 1.0)), four);
        weighed_free(keep(weighed_calloc(4, 5, four)), four);
        weighed_free(keep(weighed_memalign(64, 64, 2.0L)), four);

        struct pair pair = pair_malloc(10);
        sizes += pair.size;
        pair = pair_realloc(pair.block, 20);
        sizes += pair.size;
        weight += pair_free(pair.block);
        pair = pair_calloc(3, 4);
        sizes += pair.size;
        weight += pair_free(pair.block);
        pair = pair_memalign(64, 64);
        sizes += pair.size;
        weight += pair_free(pair.block);

        pool_free(3, keep(pool_realloc(3, keep(pool_malloc(3, 10)), 20)));
        pool_free(3, keep(pool_calloc(3, 4, 5)));
        if (pool_posix_memalign(3, &block, 64, 64) == 0)
            pool_free(3, block);
    }
    printf("%ld %g %zu\n", sum, weight, sizes);
}
