/* Two threads, argv[1] thousand pairs in all: each leaves what it allocates where the other finds it and gives it back. Stacks of
 * about twelve frames. */
#include "down.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { SLOTS = 1024 };

static unsigned long pairs;
static _Atomic(void *) left[2][SLOTS];

static void *work(void *argument) {
    size_t self = (size_t)argument;
    unsigned state = (unsigned)self + 1;
    for (unsigned long i = 0; i < pairs; i++) {
        state = state * 1664525 + 1013904223;
        unsigned at = (state >> 16) % SLOTS;
        free(atomic_exchange(&left[!self][at], NULL));
        /* Not NULL if the other thread has not been here since. */
        free(atomic_exchange(&left[self][at], down((int)((state >> 12) % 16), (state >> 8) % 800)));
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[2];
    pairs = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1000) * 1000 / 2;
    for (size_t i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
