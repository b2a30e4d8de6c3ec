// A library for late_cxx.c.
#include "keep.h"
#include <cstdlib>
#include <new>

extern "C" int cxx_plug(int round) {
    for (int i = 0; i < 50; i++) {
        ::operator delete(keep(::operator new(100)), std::size_t{100});
        ::operator delete[](keep(::operator new[](200)));
    }
    void *wrong = keep(::operator new[](300)); // ALLOCATED
    std::free(wrong);                          // FREED
    return round;
}
