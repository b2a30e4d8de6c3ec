/* While one thread holds the dynamic linker's lock, another allocates for the first time, from stacks that nobody has seen
 * before, and the first waits for it. */
#define _GNU_SOURCE
#include "keep.h"
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static sem_t start, finished;

static NOINLINE void down(int depth) {
    free(keep(malloc((size_t)depth)));
    if (depth > 0)
        down(depth - 1);
    __asm__ volatile("" : : : "memory");
}

static void *work(void *argument) {
    while (sem_wait(&start) != 0 && errno == EINTR)
        ;
    down(300);
    sem_post(&finished);
    return argument;
}

static int callback(struct dl_phdr_info *info, size_t size, void *result) {
    (void)info;
    (void)size;
    sem_post(&start);
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 60;
    while (sem_timedwait(&finished, &end) != 0)
        if (errno != EINTR)
            return 1;
    *(int *)result = 1;
    return 1;
}

int main(void) {
    sem_init(&start, 0, 0);
    sem_init(&finished, 0, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) != 0)
        return 1;
    int result = 0;
    dl_iterate_phdr(callback, &result);
    pthread_join(thread, NULL);
    printf("finished %d\n", result);
    return 0;
}
