/* A signal every hundred microseconds while two threads allocate. The handler doesn't. */
#define _GNU_SOURCE
#include "keep.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

static volatile sig_atomic_t ticks;

static void tick(int signal) {
    (void)signal;
    ticks++;
    errno = 77;
    errno = 0;
}

static NOINLINE void *down(int depth, size_t size) {
    void *block = depth == 0 ? keep(malloc(size)) : down(depth - 1, size);
    __asm__ volatile("" : : : "memory");
    return block;
}

static void *work(void *argument) {
    void *held[100] = {0};
    unsigned state = 1;
    for (int i = 0; i < 200000; i++) {
        state = state * 1664525 + 1013904223;
        unsigned at = (state >> 16) % 100;
        free(held[at]);
        held[at] = down((int)((state >> 10) % 20), (state >> 8) % 500);
    }
    for (int i = 0; i < 100; i++)
        free(held[i]);
    return argument;
}

int main(void) {
    /* Higher than the rest: the peak doesn't depend on the schedule. */
    free(keep(malloc(1 << 20)));
    struct sigaction action = {.sa_flags = 0};
    action.sa_handler = tick;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 100}, {0, 100}}, off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    work(NULL);
    pthread_join(thread, NULL);
    setitimer(ITIMER_REAL, &off, NULL);
    printf("ticked %d errno %d\n", ticks > 0, errno);
    return 0;
}
