// Operators of the program's own whose new_handler calls them again, and leaves those calls by an exception or by a jump. The outer
// ones then go on, and what they get is theirs.
#include "keep.h"
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <new>

static int failing;
static int depth;
static bool jumps;
static jmp_buf outs[3];

NOINLINE void *operator new(std::size_t size) {
    for (;;) {
        if (failing > 0)
            failing--;
        else if (void *block = keep(std::malloc(size)))
            return block;
        std::get_new_handler()();
    }
}

NOINLINE void operator delete(void *block) noexcept { std::free(block); }
NOINLINE void operator delete(void *block, std::size_t) noexcept { std::free(block); }

[[noreturn]] static void leave() {
    if (jumps)
        longjmp(outs[depth], 1);
    throw std::bad_alloc();
}

// Amid the call of depth 0, each level makes another, and gives that up; the innermost handler leaves at once.
static NOINLINE void again(int most) {
    if (depth == most)
        leave();
    depth++;
    failing = 1;
    bool volatile left = false;
    if (jumps) {
        if (setjmp(outs[depth]) == 0)
            operator delete(operator new(300));
        else
            left = true;
    } else {
        try {
            operator delete(operator new(300));
        } catch (std::bad_alloc &) {
            left = true;
        }
    }
    depth--;
    if (!left)
        std::puts("not left");
    // The handlers further in leave too, but for the outermost, whose call goes on.
    if (depth > 0)
        leave();
}

template <int MOST> static void handler() { again(MOST); }

static NOINLINE void outer() {
    failing = 1;
    operator delete(keep(operator new(200)));
}

int main() {
    for (int i = 0; i < 10; i++) {
        jumps = i % 2 == 0;
        std::set_new_handler(handler<1>);
        outer();
        std::set_new_handler(handler<2>);
        outer();
    }
    std::puts("done");
}
