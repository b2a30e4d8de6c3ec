/* Processes made by clone(2) itself: one that shares the memory while its parent waits, one that shares it while its
 * parent goes on, and one with a copy of it, as fork makes. */
#define _GNU_SOURCE
#include "keep.h"
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int go, ran;

static NOINLINE void shared(void) {
    for (int i = 0; i < 10; i++)
        free(keep(malloc(100)));
    for (int i = 0; i < 3; i++)
        keep(malloc(200));
}

static int allocates(void *argument) {
    (void)argument;
    shared();
    _exit(3);
}

/* Allocates nothing: its parent does, with the same thread-local storage. */
static int computes(void *argument) {
    (void)argument;
    while (!go)
        ran++;
    _exit(4);
}

static NOINLINE void meanwhile(void) {
    for (int i = 0; i < 2000; i++)
        free(keep(malloc(300)));
}

static NOINLINE void copied(void) {
    for (int i = 0; i < 33; i++)
        keep(malloc(400));
}

int main(void) {
    static char stack[256 << 10] __attribute__((aligned(16)));
    int statuses[3] = {0};
    pid_t child = clone(allocates, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    waitpid(child, &statuses[0], 0);
    child = clone(computes, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
    meanwhile();
    go = 1;
    waitpid(child, &statuses[1], 0);
    child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        copied();
        _exit(5);
    }
    waitpid(child, &statuses[2], 0);
    for (int i = 0; i < 3; i++)
        printf("%d\n", WEXITSTATUS(statuses[i]));
    return 0;
}
