// A new_handler of the runtime's operators that ends in a jump to what gives its reserve back, in each way; the next one throws.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <new>

static void *reserve;
static std::size_t volatile huge = std::size_t(-1) / 2;

static void last() { throw std::bad_alloc(); }

static void *taken() {
    std::set_new_handler(last);
    void *block = reserve;
    reserve = nullptr;
    return block;
}

static void by_free() { std::free(taken()); }
static void by_delete() { operator delete(taken()); }
static void by_delete_array() { operator delete[](taken()); }
static void by_sized_delete() { operator delete(taken(), std::size_t(5000)); }

int main() {
    int thrown = 0;
    for (int i = 0; i < 100; i++) {
        void (*const handlers[])() = {by_free, by_delete, by_delete_array, by_sized_delete};
        int way = i % 4;
        reserve = keep(way == 0 ? std::malloc(5000) : way == 2 ? operator new[](5000) : operator new(5000));
        std::set_new_handler(handlers[way]);
        try {
            operator delete(operator new(huge));
        } catch (std::bad_alloc &) {
            thrown++;
        }
    }
    std::printf("%d thrown\n", thrown);
}
