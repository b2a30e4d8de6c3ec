/* Has a handler answer its system calls for a while, amid which it allocates, and says how many came there. */
#define _GNU_SOURCE
#include "keep.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static volatile char selector;
static volatile long count;

/* Each fails, as one that its author didn't foresee. */
static void answer(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
    selector = 0;
    count++;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -38;
    selector = 1;
}

struct kernels {
    void *handler;
    unsigned long flags;
    char *restorer;
    unsigned long mask;
};

static void *blocks[1000];

NOINLINE static void work(int rounds) {
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 1000; i++)
            blocks[i] = keep(malloc(24));
        for (int i = 0; i < 1000; i++)
            free(blocks[i]);
    }
}

int main(void) {
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    struct kernels known;
    syscall(SYS_rt_sigaction, SIGSYS, NULL, &known, sizeof known.mask);
    /* The heap doesn't grow or shrink later. */
    work(1);
    keep(malloc(24));
    /* Kernels before 5.11 can't: then it merely allocates. */
    prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, known.restorer, 16, &selector);
    selector = 1;
    work(200);
    selector = 0;
    prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0);
    work(1);
    printf("%ld answered\n", count);
}
