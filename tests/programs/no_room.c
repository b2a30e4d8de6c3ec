/* Threads that begin to allocate when the address space may not grow: there is no room for what records them. */
#define _GNU_SOURCE
#include "keep.h"
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { THREADS = 5 };

static pthread_barrier_t barrier;

static void *work(void *argument) {
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 1000; i++)
        free(keep(malloc((size_t)(i % 200))));
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    free(keep(malloc(3000)));
    return argument;
}

static long pages_used(void) {
    char text[100] = "";
    int fd = open("/proc/self/statm", O_RDONLY);
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got > 0 ? atol(text) : 0;
}

int main(void) {
    /* All threads take from what the program has already. */
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    free(keep(malloc(100 << 10)));
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, NULL) != 0)
            return 1;
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)pages_used() * 4096, limit.rlim_max});
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    setrlimit(RLIMIT_AS, &limit);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("no room\n");
    return 0;
}
