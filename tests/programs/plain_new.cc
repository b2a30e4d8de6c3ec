// Operators of the C++ runtime, in all forms that call nothing but malloc and free: many times with memory, then without,
// where the handler is asked, and with memory again.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sys/resource.h>

static int asked;
static rlimit usual;

static void handler() {
    if (++asked % 3 == 0)
        std::set_new_handler(nullptr);
}

NOINLINE static void with_memory() {
    for (int i = 0; i < 200; i++) {
        std::size_t size = std::size_t(i) % 50;
        operator delete(keep(operator new(size)));
        operator delete(keep(operator new(size)), size);
        operator delete(keep(operator new(size, std::nothrow)), std::nothrow);
        operator delete[](keep(operator new[](size)));
        operator delete[](keep(operator new[](size)), size);
        operator delete[](keep(operator new[](size, std::nothrow)), std::nothrow);
        operator delete(keep(static_cast<void *>(nullptr)));
    }
}

NOINLINE static void without_memory() {
    std::size_t volatile much = std::size_t(-1) / 2 + 1;
    for (int i = 0; i < 20; i++) {
        std::set_new_handler(handler);
        try {
            operator delete(operator new(much));
        } catch (const std::bad_alloc &) {
            std::puts("new threw");
        }
        std::set_new_handler(handler);
        try {
            operator delete[](operator new[](much));
        } catch (const std::bad_alloc &) {
            std::puts("new[] threw");
        }
        std::set_new_handler(handler);
        if (!operator new(much, std::nothrow))
            std::puts("new gave nothing");
    }
}

static void find_memory() {
    asked++;
    setrlimit(RLIMIT_AS, &usual);
}

NOINLINE static void with_memory_later() {
    getrlimit(RLIMIT_AS, &usual);
    rlimit none = usual;
    none.rlim_cur = 1 << 20;
    std::set_new_handler(find_memory);
    for (int i = 0; i < 20; i++) {
        setrlimit(RLIMIT_AS, &none);
        operator delete(keep(operator new(200 << 20)));
        setrlimit(RLIMIT_AS, &none);
        operator delete[](keep(operator new[](200 << 20, std::nothrow)));
    }
}

int main() {
    with_memory();
    without_memory();
    with_memory_later();
    with_memory();
    std::printf("the handler was asked %d times\n", asked);
}
