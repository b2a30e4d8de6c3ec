// Operators of the program's own that do no more than count before they jump to malloc and free. Those of libstdc++ that call
// them must go on doing so.
#pragma GCC diagnostic ignored "-Wsized-deallocation"
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <new>

static int made, gone;

NOINLINE void *operator new(std::size_t size) {
    made++;
    return std::malloc(size);
}

NOINLINE void operator delete(void *block) noexcept {
    gone++;
    std::free(block);
}

int main() {
    for (int i = 0; i < 200; i++) {
        operator delete(keep(operator new(100)), std::size_t{100});
        operator delete[](keep(operator new[](200)));
        operator delete[](keep(operator new[](300)), std::size_t{300});
        operator delete(keep(operator new(400, std::nothrow)), std::nothrow);
    }
    std::printf("made %d, gone %d\n", made, gone);
}
