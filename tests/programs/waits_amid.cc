// Allocators that let other coroutines run while they wait: the program's own operator new, and a family with a prefix.
// "new": two coroutines wait in operator new, and go on in the order in which they came; then their stacks are unmapped, and a third
// one, whose stack lies below, allocates. "thread": one waits in it on one thread, and goes on on another. "family": as "new", in the
// family. "neighbour": one waits in the family while another one, on the next stack below, allocates.
#include <alloca.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

#define NOINLINE __attribute__((noinline))

static ucontext_t *back;
static ucontext_t coroutines[3];
static int current;
static bool is_busy;
static size_t deep;

static void yield() {
    int own = current;
    swapcontext(&coroutines[own], back);
}

static void resume(int number) {
    ucontext_t here;
    back = &here;
    current = number;
    swapcontext(&here, &coroutines[number]);
}

NOINLINE void *operator new(size_t size) {
    while (is_busy && current < 2)
        yield();
    void *block = malloc(size);
    if (block == nullptr)
        throw std::bad_alloc();
    return block;
}

NOINLINE void operator delete(void *block) noexcept {
    asm volatile("");
    free(block);
}

NOINLINE void operator delete(void *block, size_t) noexcept {
    asm volatile("");
    free(block);
}

static char pool[1 << 20];
static size_t taken;

extern "C" {
NOINLINE void *basin_malloc(size_t size) {
    while (is_busy && current < 2)
        yield();
    void *block = pool + taken;
    taken += (size + 15) & ~size_t(15);
    return block;
}

NOINLINE void *basin_calloc(size_t count, size_t size) { return memset(basin_malloc(count * size), 0, count * size); }

NOINLINE void *basin_realloc(void *old, size_t size) {
    void *block = basin_malloc(size);
    return old == nullptr ? block : memcpy(block, old, size);
}

NOINLINE void *basin_memalign(size_t alignment, size_t size) {
    taken = (taken + alignment - 1) / alignment * alignment;
    return basin_malloc(size);
}

NOINLINE void basin_free(void *block) { asm volatile("nop; nop; nop; nop; nop; nop" : : "r"(block)); }
}

static void *volatile block;
static bool by_family;

static void waiting() {
    // So that the stack of the next one below is near.
    char *room = static_cast<char *>(alloca(deep));
    *static_cast<volatile char *>(room) = 1;
    block = by_family ? basin_malloc(32) : operator new(32);
    yield();
}

static void allocating() {
    for (int i = 0; i < 1000; i++) {
        if (by_family) {
            basin_free(basin_malloc(10));
        } else {
            block = operator new(100);
            operator delete(block);
        }
        block = malloc(50);
        free(block);
    }
    yield();
}

static void make(int number, char *stack, size_t size, void (*function)()) {
    ucontext_t &coroutine = coroutines[number];
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = size;
    makecontext(&coroutine, function, 0);
}

static void *other_thread(void *) {
    resume(0);
    return nullptr;
}

int main(int, char **argv) {
    const char *which = argv[1];
    by_family = strcmp(which, "family") == 0 || strcmp(which, "neighbour") == 0;
    bool is_next = strcmp(which, "neighbour") == 0, two_threads = strcmp(which, "thread") == 0;
    size_t size = is_next ? 16384 : 65536;
    deep = is_next ? 16 : 58000;
    current = 2;
    for (int i = 0; i < 100; i++)
        basin_free(basin_malloc(16));
    void *mapped = mmap(nullptr, 4 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return 1;
    char *stacks = static_cast<char *>(mapped);
    make(0, stacks + 2 * size, size, waiting);
    make(1, stacks + 3 * size, size, waiting);
    make(2, stacks + size, size, allocating);
    is_busy = true;
    resume(0);
    if (is_next) {
        resume(2);
    } else if (two_threads) {
        is_busy = false;
        pthread_t thread;
        pthread_create(&thread, nullptr, other_thread, nullptr);
        pthread_join(thread, nullptr);
    } else {
        resume(1);
    }
    is_busy = false;
    if (!two_threads)
        resume(0);
    if (!two_threads && !is_next)
        resume(1);
    munmap(stacks + 2 * size, 2 * size);
    if (!is_next)
        resume(2);
    puts("done");
}
