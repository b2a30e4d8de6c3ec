// Operators of the program's own, one of which catches what the other throws: the block of an exception that was got far down its
// stack is given back close to it.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

static void *within_limits(std::size_t size) { return size < 100000 ? std::malloc(size) : nullptr; }

NOINLINE void *operator new(std::size_t size) {
    for (;;) {
        if (void *block = within_limits(size))
            return block;
        std::get_new_handler()();
    }
}

NOINLINE void *operator new(std::size_t size, const std::nothrow_t &) noexcept {
    try {
        return operator new(size);
    } catch (...) {
        return nullptr;
    }
}

NOINLINE void operator delete(void *block) noexcept { std::free(block); }
NOINLINE void operator delete(void *block, std::size_t) noexcept { std::free(block); }

// It says why, in a line on its stack.
static void refuse() {
    char line[2000];
    std::memset(line, 1, sizeof line);
    keep(line);
    throw std::bad_alloc();
}

int main() {
    std::set_new_handler(refuse);
    int refused = 0;
    for (int i = 0; i < 20; i++) {
        refused += operator new(200000, std::nothrow) == nullptr;
        operator delete(keep(operator new(136)));
        std::free(keep(std::malloc(136)));
    }
    std::printf("%d refused\n", refused);
}
