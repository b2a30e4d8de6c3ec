// Operators of the program's own: one puts a header before what malloc gives, and calls functions of its own on the way.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <new>

static std::size_t made, gone;

NOINLINE static void *raw(std::size_t size) {
    made++;
    return std::malloc(size);
}

NOINLINE static void release(void *block) {
    gone++;
    std::free(block);
}

NOINLINE void *operator new(std::size_t size) {
    auto *block = static_cast<std::size_t *>(raw(size + 16));
    if (!block)
        throw std::bad_alloc();
    block[0] = size;
    return block + 2;
}

NOINLINE void operator delete(void *block) noexcept {
    if (block)
        release(static_cast<std::size_t *>(block) - 2);
}

NOINLINE void operator delete(void *block, std::size_t) noexcept { operator delete(block); }

int main() {
    void *kept[10];
    for (int i = 0; i < 100; i++) {
        // libstdc++'s new[] calls the new of the program.
        void *one = keep(operator new(100)), *many = keep(operator new[](200));
        if (i < 10)
            kept[i] = one;
        else
            operator delete(one, std::size_t{100});
        operator delete[](many);
    }
    std::size_t volatile huge = std::size_t(-1) / 2;
    try {
        operator delete(operator new(huge));
    } catch (const std::bad_alloc &) {
        std::puts("bad_alloc");
    }
    std::free(keep(std::malloc(77)));
    for (void *block : kept)
        operator delete(block);
    std::printf("made %zu, gone %zu\n", made, gone);
}
