/* A handler forks while it interrupts allocations, and the child returns from the handler into the very call.
   Prints how many blocks the parent allocated and freed; ends only when all children have ended. */
#include "keep.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t forks, child;

static void fork_here(int signal) {
    (void)signal;
    if (fork() == 0) {
        child = 1;
        setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    } else {
        forks++;
    }
}

int main(void) {
    int ends[2];
    long blocks = 0;
    if (pipe(ends) != 0)
        return 1;
    signal(SIGCHLD, SIG_IGN);
    signal(SIGALRM, fork_here);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 3000}, {0, 3000}}, NULL);
    while (forks < 100) {
        free(keep(malloc(32)));
        blocks++;
        if (child) {
            for (int i = 0; i < 3; i++)
                free(keep(malloc(8)));
            _exit(0);
        }
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    signal(SIGALRM, SIG_DFL);
    /* The pipe's end comes when the last child has gone. */
    close(ends[1]);
    alarm(20);
    char byte;
    ssize_t got = read(ends[0], &byte, 1);
    char line[40];
    int length = snprintf(line, sizeof line, "%ld %zd\n", blocks, got);
    return write(1, line, (size_t)length) == length ? 0 : 1;
}
