/* Coroutines whose first function returns to an address that was made up, and one of which is made on the stack of another, which is
   unmapped before it goes on. Of what is found behind its first frame nothing is there. */
#define _GNU_SOURCE
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define STACK ((size_t)64 << 10)

#ifdef __x86_64__

/* Goes to another stack. What comes to lie right behind the call of `fails`, which returns to nobody, is `returned`: by its return address a
   frame is one of `fails`, whose callers are found by RBP. */
__asm__(".text\n"
        ".type switch_to, @function\n"
        "switch_to:\n"
        ".cfi_startproc\n"
        "push %rbp\n.cfi_adjust_cfa_offset 8\n.cfi_offset rbp, -16\n"
        "push %rbx\n.cfi_adjust_cfa_offset 8\n.cfi_offset rbx, -24\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %rbx\n.cfi_adjust_cfa_offset -8\n"
        "pop %rbp\n.cfi_adjust_cfa_offset -8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size switch_to, . - switch_to\n"
        ".type fails, @function\n"
        "fails:\n"
        ".cfi_startproc\n"
        "push %rbp\n.cfi_adjust_cfa_offset 8\n.cfi_offset rbp, -16\n"
        "mov %rsp, %rbp\n.cfi_def_cfa_register rbp\n"
        "call abort\n"
        ".cfi_endproc\n"
        ".size fails, . - fails\n"
        ".type returned, @function\n"
        "returned:\n"
        ".cfi_startproc\n"
        "ud2\n"
        ".cfi_endproc\n"
        ".size returned, . - returned\n");

void switch_to(void **from, void *to);
void returned(void);

static void *main_sp, *first_sp, *second_sp;
static char *second_stack;

/* What `switch_to` finds on a new stack: RBX, RBP, the function, and where that returns to. */
static void **prepared(char *stack, void (*begin)(void), void *rbp) {
    void **sp = (void **)(stack + STACK - 64);
    *--sp = (void *)returned;
    *--sp = (void *)begin;
    *--sp = rbp;
    *--sp = NULL;
    return sp;
}

static NOINLINE void allocate(int size) {
    free(keep(malloc(size)));
}

static NOINLINE void second(void) {
    for (int i = 100;; i++) {
        allocate(i);
        switch_to(&second_sp, main_sp);
    }
}

static NOINLINE void make_second(void) {
    allocate(10);
    second_sp = prepared(second_stack, second, __builtin_frame_address(0));
    allocate(11);
    switch_to(&first_sp, main_sp);
}

static void first(void) {
    make_second();
    abort();
}

int main(void) {
    second_stack = mmap(NULL, 3 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *first_stack = second_stack + 2 * STACK;
    if (second_stack == MAP_FAILED || munmap(second_stack + STACK, STACK))
        return 1;
    first_sp = prepared(first_stack, first, NULL);
    switch_to(&main_sp, first_sp);
    munmap(first_stack, STACK);
    allocate(12);
    for (int i = 0; i < 5; i++) {
        switch_to(&main_sp, second_sp);
        allocate(13);
    }
    puts("done");
    return 0;
}

#else

int main(void) {
    char *stack = keep(malloc(STACK));
    free(stack);
    puts("done");
    return 0;
}

#endif
