/* For argv[1] tenths of a second: allocates, and forks children that do nothing. Prints a line when it begins, and how many there were. With
   `jump` behind that, a handler leaves an allocation by siglongjmp before, in code that is neither libc's nor the program's. */
#define _GNU_SOURCE
#include "deep.h"
#include "where.h"
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char __executable_start, etext;

static sigjmp_buf before;
static volatile sig_atomic_t has_jumped;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void jump(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    uintptr_t at = interrupted(context);
    if (has_jumped || is_in_libc(at) || ((uintptr_t)&__executable_start <= at && at < (uintptr_t)&etext))
        return;
    has_jumped = 1;
    siglongjmp(before, 1);
}

static NOINLINE void leave_an_allocation(void) {
    struct sigaction action = {.sa_sigaction = jump, .sa_flags = SA_SIGINFO | SA_RESTART};
    static uint64_t state = 1;
    find_libc();
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 2000}, {0, 2000}}, NULL);
    if (sigsetjmp(before, 1) == 0) {
        for (double end = now() + 20; now() < end; state = state * 6364136223846793005u + 1442695040888963407u)
            for (int i = 0; i < 100; i++)
                free(down((state >> 20) + (uint64_t)i, 40, 32));
        /* Nobody has hooked anything. */
        exit(2);
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
}

int main(int argc, char **argv) {
    double tenths = argc > 1 ? atof(argv[1]) : 10;
    long forks = 0;
    puts("there");
    fflush(stdout);
    if (argc > 2 && strcmp(argv[2], "jump") == 0)
        leave_an_allocation();
    for (double end = now() + 0.1 * tenths; now() < end; forks++) {
        for (int i = 0; i < 20; i++)
            free(keep(malloc(50)));
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(42);
        if (child < 0 || waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 42)
            return 1;
    }
    printf("%ld\n", forks);
    return 0;
}
