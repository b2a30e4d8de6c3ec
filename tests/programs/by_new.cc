// A family of functions with an allocator's names that hands on to operators.
#include "keep.h"
#include <cstdio>
#include <new>

#define APART extern "C" __attribute__((noipa))

APART void *by_new_malloc(std::size_t size) { return operator new(size + 8); }
APART void by_new_free(void *block) { operator delete(block); }
APART void *by_array_malloc(std::size_t size) { return operator new[](size, std::align_val_t(64)); }
APART void by_array_free(void *block) { operator delete[](block, std::align_val_t(64)); }

int main() {
    for (int i = 0; i < 10; i++) {
        by_new_free(keep(by_new_malloc(100)));
        by_array_free(keep(by_array_malloc(100)));
    }
    puts("done");
}
