// A library in C++ that reports a pool of its own, to be opened late; two sources of it include the header.
#include "grapnel_heap.h"

namespace {
alignas(16) char memory[4096];

struct Arena {
    grapnel_heap heap = grapnel_heap_create("library's");
    ~Arena() { grapnel_heap_destroy(heap); }
};

Arena arena;
} // namespace

extern "C" void use_pool() {
    for (int i = 0; i < 11; i++)
        grapnel_heap_alloc(arena.heap, memory + 16 * i, 12);
}
