// Operators of the program's own, left by longjmp out of a new_handler; what is allocated then is no part of them.
#include "keep.h"
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <new>

static jmp_buf out;

NOINLINE void *operator new(std::size_t size) {
    for (;;) {
        if (void *block = std::malloc(size))
            return block;
        std::get_new_handler()();
    }
}

NOINLINE void operator delete(void *block) noexcept { std::free(block); }
NOINLINE void operator delete(void *block, std::size_t) noexcept { std::free(block); }

static void leave() { longjmp(out, 1); }

// Less than a kilobyte below the place where the operator's frames were, and leaves what is there as it is.
static NOINLINE void below_what_was_left() {
    char volatile room[700];
    room[0] = 0;
    std::free(keep(std::malloc(100)));
    room[1] = room[0];
}

static NOINLINE void further_down(int level) {
    char volatile room[64];
    room[0] = static_cast<char>(level);
    std::free(keep(std::malloc(100)));
    if (level > 0)
        further_down(level - 1);
    room[1] = room[0];
}

int main() {
    std::set_new_handler(leave);
    std::size_t volatile huge = std::size_t(-1) / 2 + 1;
    for (int i = 0; i < 10; i++) {
        if (setjmp(out) == 0)
            operator delete(operator new(huge));
        else {
            below_what_was_left();
            further_down(18);
        }
    }
    operator delete(keep(operator new(7)));
    std::puts("done");
}
