/* Runs out of stack with an allocation in each frame, recovers on another stack, and goes on. Does so in five
 * different depths of frame, so that the end comes in different places. */
#define _GNU_SOURCE
#include "keep.h"
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static sigjmp_buf recover;

static void on_fault(int signal) {
    (void)signal;
    siglongjmp(recover, 1);
}

static volatile int endless = 1;

static NOINLINE int sink(size_t room) {
    volatile char space[room];
    space[0] = 1;
    free(keep(malloc(40)));
    int below = endless ? sink(room) : 0;
    return below + space[0];
}

static NOINLINE void afterwards(void) {
    for (int i = 0; i < 1000; i++)
        keep(malloc(17));
}

int main(void) {
    static char other[65536];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_flags = SA_ONSTACK};
    action.sa_handler = on_fault;
    sigaction(SIGSEGV, &action, NULL);
    setrlimit(RLIMIT_STACK, &(struct rlimit){1 << 20, 1 << 20});
    volatile int recovered = 0;
    for (volatile size_t room = 100; room < 6000; room = room * 2 + 40) {
        if (sigsetjmp(recover, 1) == 0)
            sink(room);
        recovered++;
    }
    afterwards();
    printf("recovered %d\n", recovered);
    return 0;
}
