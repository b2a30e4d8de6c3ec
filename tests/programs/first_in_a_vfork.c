/* Threads whose first allocation is made by a child of vfork, in their memory and under another id, while others begin and end. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 60, THREADS = 8, BLOCKS = 300 };

static pthread_barrier_t all;

static void *work(void *unused) {
    void *blocks[BLOCKS];
    pthread_barrier_wait(&all);
    pid_t child = vfork();
    if (child == 0) {
        free(keep(malloc(24)));
        free(keep(malloc(48)));
        syscall(SYS_exit, 0);
    }
    for (size_t at = 0; at < BLOCKS; at++)
        blocks[at] = keep(malloc(16 + at));
    for (size_t at = 0; at < BLOCKS; at++)
        free(blocks[at]);
    int status = 1;
    waitpid(child, &status, 0);
    return status == 0 ? unused : (void *)1;
}

int main(void) {
    pthread_t threads[THREADS];
    long wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_init(&all, 0, THREADS);
        for (int at = 0; at < THREADS; at++)
            pthread_create(&threads[at], 0, work, 0);
        for (int at = 0; at < THREADS; at++) {
            void *result;
            pthread_join(threads[at], &result);
            wrong += !!result;
        }
        pthread_barrier_destroy(&all);
    }
    printf("%ld\n", wrong);
    return 0;
}
