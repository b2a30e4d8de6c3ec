// A library with all common operators; it is linked so that they are bound to itself.
#pragma GCC diagnostic ignored "-Wsized-deallocation"
#include "keep.h"
#include <cstdlib>
#include <new>

NOINLINE void *operator new(std::size_t size) { return std::malloc(size); }
NOINLINE void *operator new[](std::size_t size) { return keep(std::malloc(size)); }
NOINLINE void *operator new(std::size_t size, const std::nothrow_t &) noexcept { return std::malloc(size + 1); }
NOINLINE void *operator new[](std::size_t size, const std::nothrow_t &) noexcept { return std::malloc(size + 2); }
NOINLINE void operator delete(void *block) noexcept { std::free(block); }
NOINLINE void operator delete[](void *block) noexcept { std::free(keep(block)); }
NOINLINE void operator delete(void *block, std::size_t size) noexcept { std::free(size ? block : nullptr); }
NOINLINE void operator delete[](void *block, std::size_t size) noexcept { std::free(size ? keep(block) : nullptr); }

extern "C" int *make() { return new int(5); }
extern "C" void unmake(int *block) { delete block; }
