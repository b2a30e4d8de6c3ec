// Every form of new and delete, given back as it should be, and then in every wrong way. Lines are marked where a block of
// the wrong kind is allocated (A) and given back (F).
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <new>

struct alignas(64) Wide {
    char room[192];
};

static std::size_t volatile huge = std::size_t(-1) / 2 + 1;
static constexpr std::align_val_t by64{64}, by4096{4096};

template <class T> static T *kept(T *p) { return static_cast<T *>(keep(p)); }

NOINLINE static void right() {
    for (int i = 0; i < 3; i++) {
        ::operator delete(keep(::operator new(10)));
        ::operator delete(keep(::operator new(20)), std::size_t{20});
        ::operator delete(keep(::operator new(30, std::nothrow)));
        ::operator delete(keep(::operator new(40, std::nothrow)), std::nothrow);
        ::operator delete[](keep(::operator new[](50)));
        ::operator delete[](keep(::operator new[](60)), std::size_t{60});
        ::operator delete[](keep(::operator new[](70, std::nothrow)), std::nothrow);
        ::operator delete(keep(::operator new(80, by64)), by64);
        ::operator delete(keep(::operator new(90, by64)), std::size_t{90}, by64);
        ::operator delete(keep(::operator new(100, by4096, std::nothrow)), by4096, std::nothrow);
        ::operator delete[](keep(::operator new[](110, by64)), by64);
        ::operator delete[](keep(::operator new[](120, by64)), std::size_t{120}, by64);
        ::operator delete[](keep(::operator new[](130, by64, std::nothrow)), by64, std::nothrow);
        ::operator delete(keep(::operator new(0)), std::size_t{0});
        delete kept(new Wide);
        delete[] kept(new Wide[2]);
        ::operator delete(nullptr);
        ::operator delete[](nullptr, by64);
        std::free(keep(std::malloc(140)));
        std::free(keep(std::aligned_alloc(128, 256)));
        std::free(std::realloc(keep(std::malloc(150)), 300));
    }
    // A small block and a large one of the same remainder.
    ::operator delete(keep(::operator new(20000)), std::size_t{20000});
}

static void *reserve;
static int handled;

static void handler() {
    handled++;
    std::free(reserve);
    reserve = keep(std::malloc(33));
    if (handled == 2)
        std::set_new_handler(nullptr);
}

/// A handler is called from inside `operator new`, and what it does is the program's.
NOINLINE static void without_memory() {
    reserve = keep(std::malloc(5000));
    std::set_new_handler(handler);
    try {
        ::operator delete(keep(::operator new(huge)));
    } catch (const std::bad_alloc &) {
        std::puts("bad_alloc");
    }
    std::printf("handled %d\n", handled);
    std::printf("nothrow %d\n", ::operator new[](huge, by64, std::nothrow) == nullptr);
    std::free(reserve);
    // What comes after an exception is seen as before.
    std::free(keep(std::malloc(34)));
    ::operator delete(keep(::operator new(35)));
}

NOINLINE static void wrong() {
    for (int i = 0; i < 2; i++) {
        void *a = keep(::operator new[](1000)); // A01
        std::free(a);                           // F01
        void *b = keep(::operator new[](1001)); // A02
        ::operator delete(b);                   // F02
        void *c = keep(::operator new(1002));   // A03
        ::operator delete[](c);                 // F03
        void *d = keep(std::malloc(1003));      // A04
        ::operator delete(d);                   // F04
        void *e = keep(std::calloc(1, 1004));   // A05
        ::operator delete[](e);                 // F05
        void *f = keep(::operator new(1005));   // A06
        f = keep(std::realloc(f, 2005));        // F06
        std::free(f);
        void *g = keep(::operator new(1006));          // A07
        ::operator delete(g, std::size_t{1007});       // F07
        void *h = keep(::operator new(1007, by64));    // A08
        ::operator delete(h);                          // F08
        void *k = keep(::operator new(1008));          // A09
        ::operator delete(k, by64);                    // F09
        void *l = keep(::operator new[](1009, by64));  // A10
        ::operator delete[](l, by4096);                // F10
        void *m = keep(::operator new(1010, by64));    // A11
        ::operator delete(m, std::size_t{1011}, by64); // F11
    }
}

int main(int argc, char **) {
    right();
    without_memory();
    if (argc > 1)
        wrong();
    std::puts("done");
}
