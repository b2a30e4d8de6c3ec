/* A process that shares its parent's memory and thread pointer sleeps beside it, and so does the parent. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static int sleeps(void *unused) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;)
        pause();
    return unused != NULL;
}

int main(void) {
    char *stack = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || clone(sleeps, stack + 65536, CLONE_VM | SIGCHLD, NULL) < 0)
        return 1;
    puts("at work");
    fflush(stdout);
    sleep(60);
    return 0;
}
