// Operators of the program's own that take much of the stack, as those that keep a backtrace of each block, and one that
// throws now and then.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <new>

static std::size_t seen;

#define MUCH                                                                                                           \
    void *frames[256];                                                                                                 \
    for (auto &frame : frames)                                                                                         \
        frame = keep(__builtin_return_address(0))

NOINLINE void *operator new(std::size_t size) {
    MUCH;
    if (++seen % 10 == 0)
        throw std::bad_alloc();
    void *block = std::malloc(size);
    keep(frames);
    return block;
}

NOINLINE void *operator new[](std::size_t size) {
    MUCH;
    void *block = std::malloc(size);
    keep(frames);
    return block;
}

NOINLINE void operator delete(void *block) noexcept {
    MUCH;
    std::free(block);
    keep(frames);
}

NOINLINE void operator delete[](void *block) noexcept {
    MUCH;
    std::free(block);
    keep(frames);
}

NOINLINE void operator delete(void *block, std::size_t) noexcept { operator delete(block); }

NOINLINE void operator delete[](void *block, std::size_t) noexcept { operator delete[](block); }

int main() {
    int thrown = 0;
    for (int i = 0; i < 1000; i++) {
        try {
            operator delete(keep(operator new(40)));
        } catch (const std::bad_alloc &) {
            thrown++;
        }
        operator delete[](keep(operator new[](50)));
    }
    std::printf("%d thrown\n", thrown);
}
