/* Stacks that go, and smaller ones in their place, on which functions run that inline assembly has brought there: what the unwind tables say of
 * such a function's frame leads beyond the stack's end. */
#define _GNU_SOURCE
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { LARGE = 256 << 10, SMALL = 128 << 10 };

NOINLINE static void deep(int n) {
    char much[500];
    keep(much);
    free(keep(malloc(100 + (size_t)n)));
    if (n)
        deep(n - 1);
    keep(much);
}

NOINLINE __attribute__((used)) void work(int n) {
    deep(n);
    __asm__ volatile("" : : : "memory");
}

NOINLINE static void run_on(char *top, int n) {
#ifdef __x86_64__
    __asm__ volatile("mov %%rsp, %%rbx\n mov %0, %%rsp\n call work\n mov %%rbx, %%rsp"
                     : "+r"(top), "+D"(n)
                     :
                     : "rbx", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
#else
    (void)top;
    work(n);
#endif
}

static ucontext_t main_context, coroutine;

static void entry(void) {
    work(300);
    swapcontext(&coroutine, &main_context);
}

static char *stack_at(char *base, size_t size) {
    return mmap(base, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

int main(void) {
    char *room = mmap(NULL, 4 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *base = room + (1 << 20);
    for (int i = 0; i < 20; i++) {
        getcontext(&coroutine);
        coroutine.uc_stack.ss_sp = stack_at(base, LARGE);
        coroutine.uc_stack.ss_size = LARGE;
        coroutine.uc_link = &main_context;
        makecontext(&coroutine, entry, 0);
        swapcontext(&main_context, &coroutine);
        munmap(base, LARGE);
        run_on(stack_at(base, SMALL) + SMALL, 5);
        munmap(base, SMALL);
    }
    puts("fine");
    return 0;
}
