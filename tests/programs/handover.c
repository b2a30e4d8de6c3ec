/* Six threads take each other's blocks out of a few shared slots, free and reallocate them and put others in, as fast as
 * they can, so that addresses go from thread to thread all the time. Sizes tell whose a block is and which of its blocks.
 * Between epochs all stand still: then how many bytes the slots hold is printed, and a block of a size of its own comes
 * and goes, which marks the place in the trace. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 6, SLOTS = 48, STEPS = 20000, EPOCHS = 10, SMALLEST = 32, NUMBERS = 16, MARK = 4 << 20 };

static _Atomic(size_t *) slots[SLOTS];
static _Atomic long held;
static pthread_barrier_t barrier;

static size_t next_size(long thread, unsigned *number) {
    return SMALLEST + (size_t)(*number)++ % NUMBERS * THREADS + (size_t)thread;
}

static size_t size_of(size_t *block) {
    return block ? block[0] : 0;
}

static size_t *made(void *block, size_t size) {
    size_t *words = keep(block);
    words[0] = size;
    return words;
}

static void *work(void *argument) {
    long thread = (long)argument;
    char name[16];
    snprintf(name, sizeof name, "hand %ld", thread);
    pthread_setname_np(pthread_self(), name);
    unsigned state = (unsigned)thread * 7919 + 1, number = 0;
    for (int epoch = 0; epoch <= EPOCHS; epoch++) {
        long change = 0;
        for (int step = 0; epoch > 0 && step < STEPS; step++) {
            state = state * 1664525 + 1013904223;
            _Atomic(size_t *) *slot = &slots[(state >> 16) % SLOTS];
            size_t *block = atomic_exchange(slot, NULL), *other;
            change -= (long)size_of(block);
            size_t size;
            switch (state >> 28 & 3) {
            case 0:
                free(block);
                block = NULL;
                break;
            case 1:
                size = next_size(thread, &number);
                block = made(realloc(block, size), size);
                break;
            case 2:
                free(block);
                size = next_size(thread, &number);
                block = made(malloc(size), size);
                break;
            default:
                size = next_size(thread, &number);
                other = made(malloc(size), size);
                free(block);
                block = other;
            }
            change += (long)size_of(block);
            /* Somebody may have put one in meanwhile. */
            block = atomic_exchange(slot, block);
            change -= (long)size_of(block);
            free(block);
        }
        atomic_fetch_add(&held, change);
        pthread_barrier_wait(&barrier);
        if (thread == 0) {
            printf("%ld\n", atomic_load(&held));
            free(keep(malloc(MARK + (size_t)epoch)));
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(void) {
    static char buffer[4096];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    pthread_barrier_init(&barrier, NULL, THREADS);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i) != 0)
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
