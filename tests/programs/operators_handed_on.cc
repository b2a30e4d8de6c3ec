// Blocks by all forms of new and delete, many of each: allocators' operators hand on to each other, and to functions with names of their own.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <new>

struct Small { char bytes[40]; };
struct alignas(64) Wide { char bytes[192]; };

template <typename T> NOINLINE static void by_plain_forms(int count) {
    for (int i = 0; i < count; i++) {
        T *one = (T *)keep(new T);
        T *some = (T *)keep(new T[3]);
        T *other = (T *)keep(new (std::nothrow) T);
        T *others = (T *)keep(new (std::nothrow) T[2]);
        delete one;
        delete[] some;
        delete other;
        delete[] others;
    }
}

NOINLINE static void by_calls(int count) {
    constexpr std::align_val_t aligned{128};
    for (int i = 0; i < count; i++) {
        void *blocks[6];
        for (int form = 0; form < 6; form++)
            blocks[form] = keep(form < 3 ? ::operator new(300) : ::operator new(300, aligned));
        ::operator delete(blocks[0]);
        ::operator delete(blocks[1], 300);
        ::operator delete(blocks[2], std::nothrow);
        ::operator delete(blocks[3], aligned);
        ::operator delete(blocks[4], 300, aligned);
        ::operator delete(blocks[5], aligned, std::nothrow);
    }
}

int main() {
    by_plain_forms<Small>(2000);
    by_plain_forms<Wide>(1000);
    by_calls(1000);
    for (int i = 0; i < 1000; i++) {
        free(keep(malloc(500)));
        free(keep(valloc(1001)));
    }
    puts("done");
    return 0;
}
