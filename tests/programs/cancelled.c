/* Threads that are cancelled, where they wait and where they compute, and whose cleanup handlers free and allocate. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 60, BLOCKS = 30 };

static void *blocks[THREADS][BLOCKS];
static volatile unsigned spun;

static void clean(void *argument) {
    void **mine = argument;
    for (int i = 0; i < BLOCKS; i++)
        free(mine[i]);
    keep(malloc(77));
}

static void *work(void *argument) {
    long number = (long)argument;
    pthread_cleanup_push(clean, blocks[number]);
    for (int i = 0; i < BLOCKS; i++)
        blocks[number][i] = keep(malloc((size_t)(10 + i)));
    if (number % 2) {
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
        for (;;)
            spun++;
    }
    for (;;)
        pause();
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    int cancelled = 0;
    for (long at = 0; at < THREADS; at += 4) {
        pthread_t threads[4];
        for (long i = 0; i < 4; i++)
            if (pthread_create(&threads[i], NULL, work, (void *)(at + i)) != 0)
                return 1;
        usleep(500);
        for (int i = 0; i < 4; i++)
            pthread_cancel(threads[i]);
        for (int i = 0; i < 4; i++) {
            void *result;
            pthread_join(threads[i], &result);
            cancelled += result == PTHREAD_CANCELED;
        }
    }
    printf("cancelled %d\n", cancelled);
    return 0;
}
