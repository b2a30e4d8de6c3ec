/* Two coroutines whose stacks lie side by side with nothing between. The upper one ends, and its stack becomes unreadable
 * (with an argument: is unmapped), while the lower one goes on to allocate, near its stack's upper end. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { SIZE = 64 << 10, BLOCK = 1 << 20 };

static ucontext_t program, lower, upper;
static void *volatile block;

__attribute__((noinline)) static void by_malloc(int times) {
    for (int i = 0; i < times; i++) {
        block = malloc(BLOCK);
        free(block);
    }
}

__attribute__((noinline)) static void by_both(int times) {
    for (int i = 0; i < times; i++) {
        block = calloc(1, BLOCK);
        free(block);
        by_malloc(1);
    }
}

static void below(void) {
    for (;;) {
        by_malloc(5);
        by_both(3);
        swapcontext(&lower, &program);
    }
}

static void above(void) {
    by_malloc(5);
    swapcontext(&upper, &program);
}

static void make(ucontext_t *context, char *stack, void (*function)(void)) {
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = SIZE;
    context->uc_link = NULL;
    makecontext(context, function, 0);
}

int main(int argc, char **argv) {
    (void)argv;
    char *stacks = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stacks == MAP_FAILED)
        return 1;
    make(&lower, stacks, below);
    make(&upper, stacks + SIZE, above);
    swapcontext(&program, &upper);
    swapcontext(&program, &lower);
    swapcontext(&program, &lower);
    if (argc > 1)
        munmap(stacks + SIZE, SIZE);
    else
        mprotect(stacks + SIZE, SIZE, PROT_NONE);
    for (int i = 0; i < 50; i++)
        swapcontext(&program, &lower);
    by_malloc(5);
    puts("ok");
    return 0;
}
