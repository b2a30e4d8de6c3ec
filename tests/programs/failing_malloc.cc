// A malloc of the program's own that fails now and then, as tests of fault injection have it: new throws as often.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <new>

extern "C" void *__libc_malloc(std::size_t size);
extern "C" void __libc_free(void *block);

static unsigned calls;
static bool fails;

extern "C" NOINLINE void *malloc(std::size_t size) {
    if (fails && ++calls % 7 == 0)
        return nullptr;
    return __libc_malloc(size);
}

extern "C" NOINLINE void free(void *block) { __libc_free(block); }

int main() {
    int thrown = 0;
    for (int i = 0; i < 100; i++) {
        fails = true;
        try {
            void *block = keep(operator new(40));
            fails = false;
            operator delete(block);
        } catch (const std::bad_alloc &) {
            fails = false;
            thrown++;
        }
    }
    std::printf("%u calls, %d thrown\n", calls, thrown);
}
