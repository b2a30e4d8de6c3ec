// Operators of the program's own whose helpers call malloc and free far down the stack, and now and then are stopped there by a signal, whose handler
// allocates by itself.
#include "keep.h"
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>

template <int BYTES, typename Call> NOINLINE static void *with_much(Call call) {
    char much[BYTES];
    keep(much);
    void *result = call();
    keep(much);
    return result;
}

NOINLINE static void *get(std::size_t size) {
    return with_much<600>([=] { return std::malloc(size); });
}

static std::size_t seen;

NOINLINE void *operator new(std::size_t size) {
    return with_much<3000>([=] {
        if (++seen % 10 == 0)
            std::raise(SIGUSR1);
        return get(size);
    });
}

NOINLINE void operator delete(void *block) noexcept {
    with_much<3000>([=] {
        std::free(block);
        return (void *)nullptr;
    });
}

NOINLINE void operator delete(void *block, std::size_t) noexcept { operator delete(block); }

NOINLINE static void on_signal(int) { std::free(keep(std::malloc(77))); }

int main() {
    // So that the runtime is linked, which calls these operators too.
    std::set_new_handler(nullptr);
    std::signal(SIGUSR1, on_signal);
    for (int i = 0; i < 1000; i++)
        operator delete(keep(operator new(40)));
    std::puts("done");
}
