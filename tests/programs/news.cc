// At each byte of input: operators new and delete in all their forms, a hundred times each with known sizes; then all forms of new
// where there is no memory, of which each asks the handler three times, and throws or gives nothing; not with an argument. Then
// says how that went.
#pragma GCC diagnostic ignored "-Walloc-size-larger-than="
#include "keep.h"
#include <cstdio>
#include <new>
#include <unistd.h>

static int asked, threw, none;

static void handler() {
    if (++asked % 3 == 0)
        std::set_new_handler(nullptr);
}

NOINLINE static void by_new() {
    std::align_val_t const aligned{64};
    for (int i = 0; i < 100; i++) {
        std::size_t const size = 24 + std::size_t(i) * 11;
        operator delete(keep(operator new(size)));
        operator delete(keep(operator new(size)), size);
        operator delete(keep(operator new(size, std::nothrow)), std::nothrow);
        operator delete(keep(operator new(size, aligned)), aligned);
        operator delete(keep(operator new(size, aligned)), size, aligned);
        operator delete(keep(operator new(size, aligned, std::nothrow)), aligned, std::nothrow);
    }
}

NOINLINE static void by_new_array() {
    std::align_val_t const aligned{256};
    for (int i = 0; i < 100; i++) {
        std::size_t const size = 24 + std::size_t(i) * 11;
        operator delete[](keep(operator new[](size)));
        operator delete[](keep(operator new[](size)), size);
        operator delete[](keep(operator new[](size, std::nothrow)), std::nothrow);
        operator delete[](keep(operator new[](size, aligned)), aligned);
        operator delete[](keep(operator new[](size, aligned)), size, aligned);
        operator delete[](keep(operator new[](size, aligned, std::nothrow)), aligned, std::nothrow);
    }
}

template <class New> static void fails(New call) {
    std::set_new_handler(handler);
    try {
        if (keep(call()) == nullptr)
            none++;
    } catch (std::bad_alloc const &) {
        threw++;
    }
}

NOINLINE static void without_memory() {
    std::size_t volatile much = std::size_t(-1) / 2 - 4096;
    std::align_val_t const aligned{128};
    fails([&] { return operator new(much); });
    fails([&] { return operator new[](much); });
    fails([&] { return operator new(much, aligned); });
    fails([&] { return operator new[](much, aligned); });
    fails([&] { return operator new(much, std::nothrow); });
    fails([&] { return operator new[](much, std::nothrow); });
    fails([&] { return operator new(much, aligned, std::nothrow); });
    fails([&] { return operator new[](much, aligned, std::nothrow); });
}

int main(int argc, char **) {
    char byte;
    for (;;) {
        char line[100];
        int const len = std::snprintf(line, sizeof line, "asked %d, threw %d, none %d\n", asked, threw, none);
        if (write(1, line, std::size_t(len)) != len || read(0, &byte, 1) != 1)
            return 0;
        by_new();
        by_new_array();
        if (argc == 1)
            without_memory();
    }
}
