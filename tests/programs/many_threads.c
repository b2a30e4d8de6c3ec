/* Short threads, argv[1] of them or two thousand, at most four at a time. Each frees most of what it made, and its cache with it. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { AT_A_TIME = 4 };

static void destroy(void *block) {
    free(block);
}

static pthread_key_t key;

static void *work(void *argument) {
    long number = (long)argument;
    void *made[10];
    for (int i = 0; i < 10; i++)
        made[i] = keep(malloc((size_t)(20 + i * 30)));
    pthread_setspecific(key, keep(malloc(64)));
    for (int i = 0; i < 9; i++)
        free(made[i]);
    if (number % 100 == 0)
        return made[9];
    free(made[9]);
    return NULL;
}

int main(int argc, char **argv) {
    long total = argc > 1 ? atol(argv[1]) : 2000;
    pthread_key_create(&key, destroy);
    /* More than all the threads ever hold: the peak is here, whatever the schedule. */
    free(keep(malloc(8 << 20)));
    int returned = 0;
    for (long at = 0; at < total; at += AT_A_TIME) {
        pthread_t threads[AT_A_TIME];
        for (long i = 0; i < AT_A_TIME; i++)
            if (pthread_create(&threads[i], NULL, work, (void *)(at + i)) != 0)
                return 1;
        for (int i = 0; i < AT_A_TIME; i++) {
            void *block;
            pthread_join(threads[i], &block);
            returned += block != NULL;
        }
    }
    printf("returned %d\n", returned);
    return 0;
}
