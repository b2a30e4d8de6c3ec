// Operators of its own that get their memory from a family, which hands on to malloc.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <new>

#define APART extern "C" __attribute__((noipa))

APART void *under_malloc(std::size_t size) { return std::malloc(size + 8); }
APART void under_free(void *block) { std::free(block); }

__attribute__((noipa)) void *operator new(std::size_t size) { return under_malloc(size); }
__attribute__((noipa)) void operator delete(void *block) noexcept { under_free(block); }
__attribute__((noipa)) void operator delete(void *block, std::size_t) noexcept { under_free(block); }

int main() {
    for (int i = 0; i < 20; i++)
        operator delete(keep(operator new(100)));
    puts("done");
}
