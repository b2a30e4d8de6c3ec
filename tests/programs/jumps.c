/* Control flow that a shadow of the stack would lose: longjmp out of frames that allocated, coroutines with
 * stacks from the heap, handlers on another stack that jump out. */
#define _GNU_SOURCE
#include "keep.h"
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

static jmp_buf out;
static sigjmp_buf from_handler;

static volatile int jump_out = 1;

static NOINLINE int fall(int depth) {
    volatile char room[64];
    room[3] = (char)depth;
    void *block = keep(malloc((size_t)depth + 1));
    free(block);
    if (depth == 0 && jump_out)
        longjmp(out, 1);
    return depth == 0 ? 0 : fall(depth - 1) + room[3];
}

enum { COROUTINES = 5, TURNS = 50 };
static ucontext_t main_context, contexts[COROUTINES];
static int turns[COROUTINES];

static NOINLINE void step(int which, int depth) {
    volatile char room[48];
    room[1] = (char)which;
    void *block = keep(malloc((size_t)(100 + which)));
    if (depth > 0)
        step(which, depth - 1);
    else
        swapcontext(&contexts[which], &main_context);
    free(block);
    turns[which] += room[1] == (char)which;
}

static void coroutine(int which) {
    for (int turn = 0; turn < TURNS; turn++)
        step(which, turn % 7);
}

static void handler(int signal) {
    (void)signal;
    free(keep(malloc(99)));
    siglongjmp(from_handler, 1);
}

int main(void) {
    volatile int jumps = 0;
    for (volatile int i = 0; i < 100; i++) {
        if (setjmp(out) == 0)
            fall(i);
        jumps++;
    }
    printf("jumps %d\n", jumps);

    void *stacks[COROUTINES];
    for (int i = 0; i < COROUTINES; i++) {
        getcontext(&contexts[i]);
        stacks[i] = malloc(64 << 10);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = 64 << 10;
        contexts[i].uc_link = &main_context;
        makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
    }
    for (int turn = 0; turn <= TURNS; turn++)
        for (int i = 0; i < COROUTINES; i++)
            swapcontext(&main_context, &contexts[i]);
    int sum = 0;
    for (int i = 0; i < COROUTINES; i++) {
        sum += turns[i];
        free(stacks[i]);
    }
    printf("turns %d\n", sum);

    static char other[32768];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_flags = SA_ONSTACK};
    action.sa_handler = handler;
    sigaction(SIGUSR1, &action, NULL);
    volatile int handled = 0;
    for (volatile int i = 0; i < 20; i++) {
        if (sigsetjmp(from_handler, 1) == 0)
            raise(SIGUSR1);
        handled++;
    }
    printf("handled %d\n", handled);
    return 0;
}
