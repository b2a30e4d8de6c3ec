/* A handler forks while it interrupts allocations, and the child returns from the handler into the very call. Of the arguments,
   `thread` has all that happen in the last of five threads, by stacks that are ever new, and not while libc runs: fork takes locks of
   malloc's, one of which that thread may hold;
   `twice` has the child fork again at once, and end, so that its child returns from the handler;
   `early` has it fork by _Fork, which runs no handlers of fork's;
   `alloc` has it take a block of its own before, which goes with `thread`;
   `deep` has it take large blocks below so many frames that no ring has room for them;
   `wait` has it say that it is there, and begin with SIGUSR1.
   Prints how many blocks the parent allocated and freed; ends only when all children have ended. */
#define _GNU_SOURCE
#include "deep.h"
#include "where.h"
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { FORKS = 100 };

static volatile sig_atomic_t forks, child;
static bool is_twice, allocates;
static pid_t (*forking)(void) = fork;

static void fork_here(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    uintptr_t at = interrupted(context);
    /* A tick may be late. */
    if (forks >= FORKS || is_in_libc(at))
        return;
    if (allocates)
        free(keep(malloc(16)));
    if (forking() == 0) {
        child = 1;
        if (is_twice && forking() != 0)
            _exit(0);
        setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    } else {
        forks++;
    }
}

static pthread_barrier_t all_there;

static void *idle(void *argument) {
    free(keep(malloc(32)));
    pthread_barrier_wait(&all_there);
    pause();
    return argument;
}

static int status, depth;
static size_t size = 32;
static long blocks;

static void *work(void *argument) {
    int ends[2];
    uint64_t state = 1;
    if (argument != NULL)
        pthread_sigmask(SIG_UNBLOCK, argument, NULL);
    if (pipe(ends) != 0)
        exit(1);
    signal(SIGCHLD, SIG_IGN);
    struct sigaction action = {.sa_sigaction = fork_here, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 3000}, {0, 3000}}, NULL);
    while (forks < FORKS) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        free(down(state >> 20, depth, size));
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
    status = write(1, line, (size_t)length) == length ? 0 : 1;
    return NULL;
}

static void in_a_thread(void) {
    sigset_t alarm_only;
    pthread_t thread;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
    pthread_barrier_init(&all_there, NULL, 4);
    for (int i = 0; i < 3; i++)
        pthread_create(&thread, NULL, idle, NULL);
    pthread_barrier_wait(&all_there);
    blocks = 3;
    depth = 40;
    find_libc();
    pthread_create(&thread, NULL, work, &alarm_only);
    pthread_join(thread, NULL);
}

static void wait_for_signal(void) {
    sigset_t signals;
    int got;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    puts("there");
    fflush(stdout);
    sigwait(&signals, &got);
}

int main(int argc, char **argv) {
    bool is_in_thread = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "thread") == 0) {
            is_in_thread = true;
        } else if (strcmp(argv[i], "twice") == 0) {
            is_twice = true;
        } else if (strcmp(argv[i], "early") == 0) {
            forking = _Fork;
        } else if (strcmp(argv[i], "alloc") == 0) {
            allocates = true;
        } else if (strcmp(argv[i], "deep") == 0) {
            depth = 45000;
            size = 4 << 20;
        } else {
            wait_for_signal();
        }
    }
    if (is_in_thread)
        in_a_thread();
    else
        work(NULL);
    return status;
}
