// A family of functions that throw where too much is asked for, and work that goes on until its input ends.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <new>

#define APART extern "C" NOINLINE

static void *given(void *block, std::size_t size) {
    if (size > 1000)
        throw std::bad_alloc();
    return block;
}

APART void *pool_malloc(std::size_t size) { return given(std::malloc(10), size); }
APART void *pool_calloc(std::size_t count, std::size_t size) { return given(std::calloc(1, 10), count * size); }
APART void *pool_realloc(void *block, std::size_t size) { return given(std::realloc(block, 10), size); }
APART void pool_free(void *block) { std::free(keep(block)); }
APART void *pool_memalign(std::size_t alignment, std::size_t size) {
    return given(std::aligned_alloc(alignment, 64), size);
}

// How often something was caught.
APART int work() {
    int caught = 0;
    for (int i = 0; i < 100; i++) {
        try {
            pool_free(pool_calloc(1, 5));
            pool_free(pool_memalign(64, 64));
            pool_free(pool_realloc(pool_malloc(5), 20));
            keep(pool_malloc(2000));
        } catch (const std::bad_alloc &) {
            caught++;
        }
    }
    return caught;
}

int main() {
    std::puts("ready");
    std::fflush(stdout);
    while (std::getchar() != EOF) {
        std::printf("%d caught\n", work());
        std::fflush(stdout);
    }
}
