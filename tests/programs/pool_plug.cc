// A library whose own operators give blocks side by side, 16 bytes each; some of which it gives back in a wrong way.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#pragma GCC diagnostic ignored "-Wsized-deallocation"
#include "keep.h"
#include <new>

alignas(32) static char pool[1 << 16];
static std::size_t used;
static volatile std::size_t gone;

static void *take(std::size_t size) {
    void *block = pool + used;
    used += (size + 15) & ~std::size_t{15};
    return keep(block);
}

NOINLINE void *operator new(std::size_t size) { return take(size); }
NOINLINE void *operator new[](std::size_t size) { return take(keep(nullptr) ? 0 : size); }
NOINLINE void operator delete(void *block) noexcept { gone = gone + (block == pool); }
NOINLINE void operator delete[](void *block) noexcept { gone = gone + 2 * (block == pool); }
NOINLINE void operator delete(void *block, std::size_t size) noexcept { gone = gone + size + (block == pool); }

extern "C" void run() {
    for (int i = 0; i < 100; i++) {
        void *one = operator new(16), *many = operator new[](16);
        operator delete(one, std::size_t{16});
        operator delete[](many);
    }
    // The second of two.
    void *first = operator new(16), *second = operator new(16); // SECOND
    operator delete(first);
    operator delete[](second);
    // The first, which is given back as the second should be.
    first = operator new[](16); // FIRST
    second = operator new(16);
    operator delete(first);
    operator delete(second);
    // The same by a size.
    first = operator new(15); // SIZED
    second = operator new(12);
    operator delete(first, std::size_t{12});
    operator delete(second, std::size_t{12});
}
