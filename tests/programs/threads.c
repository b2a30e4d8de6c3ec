/* Eight threads with every function, blocks freed by other threads than their makers, and threads that end
 * while their blocks live. What is live at each barrier doesn't depend on the schedule: the peak is at the one
 * where everything is held. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, BLOCKS = 500, ROUNDS = 3 };
static void *blocks[THREADS][BLOCKS];
static pthread_barrier_t barrier;

static void *make(int thread, int i) {
    size_t size = 16 + (size_t)(thread * 131 + i * 17) % 3000;
    void *out = NULL;
    switch (i % 6) {
    case 0: return keep(malloc(size));
    case 1: return keep(calloc(size, 3));
    case 2: return keep(realloc(keep(malloc(size / 2)), size));
    case 3: return posix_memalign(&out, 64, size) == 0 ? keep(out) : NULL;
    case 4: return keep(aligned_alloc(32, size));
    default: return keep(reallocarray(NULL, size, 2));
    }
}

static void *work(void *argument) {
    int thread = (int)(long)argument;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BLOCKS; i++)
            blocks[thread][i] = make(thread, i);
        pthread_barrier_wait(&barrier);
        /* The highest point of all: everything is held, and one thread adds a big block. */
        if (thread == 0 && round == 1)
            free(keep(malloc(40 << 20)));
        pthread_barrier_wait(&barrier);
        int other = (thread + 1 + round) % THREADS;
        for (int i = 0; i < BLOCKS; i++)
            free(blocks[other][i]);
        pthread_barrier_wait(&barrier);
    }
    blocks[thread][0] = keep(malloc((size_t)(100 + thread)));
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i += 2)
        free(blocks[i][0]);
    printf("joined %d\n", THREADS);
    return 0;
}
