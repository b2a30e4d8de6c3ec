/* A crowd: argv[1] threads that allocate now and then, argv[2] mappings of its own. On each line of its input it says what an
   allocation costs it, by its own processor time, and how long it was kept from running since the last line; at the end of the input,
   whether all is well. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, BLOCKS = 16, PAIRS = 20000, TRIES = 15 };

static int over;
static unsigned long bouts, wrong, longest;

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Some blocks, which nobody else may change, each given back a little later. */
static void *work(void *argument) {
    unsigned seed = (unsigned)(unsigned long)argument;
    unsigned char *kept[BLOCKS] = {0};
    size_t sizes[BLOCKS] = {0};
    for (unsigned at = seed; !__atomic_load_n(&over, __ATOMIC_RELAXED); at++) {
        unsigned slot = at % BLOCKS;
        for (size_t n = 0; n < sizes[slot]; n++)
            if (kept[slot][n] != (unsigned char)(seed + slot))
                __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
        free(kept[slot]);
        sizes[slot] = 8 + at * 7919u % 500;
        kept[slot] = keep(malloc(sizes[slot]));
        if (!kept[slot])
            abort();
        memset(kept[slot], (int)(seed + slot), sizes[slot]);
        __atomic_add_fetch(&bouts, 1, __ATOMIC_RELAXED);
        usleep(10000 + seed % 10 * 1000);
    }
    for (unsigned slot = 0; slot < BLOCKS; slot++)
        free(kept[slot]);
    return NULL;
}

/* Looks at the clock all the time, as far as it is let. */
static void *watch(void *unused) {
    double last = now(CLOCK_MONOTONIC);
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
        usleep(200);
        double time = now(CLOCK_MONOTONIC);
        unsigned long gap = (unsigned long)(time - last), most = __atomic_load_n(&longest, __ATOMIC_RELAXED);
        while (gap > most &&
               !__atomic_compare_exchange_n(&longest, &most, gap, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        }
        last = time;
    }
    return unused;
}

/* Nanoseconds of this thread's for a block that is got and given back: the least of some tries. */
static double pace(void) {
    double least = 1e18;
    for (int n = 0; n < TRIES; n++) {
        double begun = now(CLOCK_THREAD_CPUTIME_ID);
        for (unsigned pair = 0; pair < PAIRS; pair++)
            free(keep(malloc(24 + pair % 64 * 8)));
        double took = (now(CLOCK_THREAD_CPUTIME_ID) - begun) / PAIRS;
        least = took < least ? took : least;
    }
    return least;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    long threads = atol(argv[1]), mappings = atol(argv[2]);
    /* Neighbours with the same rights would be one. */
    for (long n = 0; n < mappings; n++)
        if (mmap(NULL, PAGE, n % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            return 1;
    pthread_t *all = calloc((size_t)threads + 1, sizeof *all);
    for (long n = 0; n < threads; n++)
        if (pthread_create(&all[n], NULL, work, (void *)n) != 0)
            return 1;
    if (pthread_create(&all[threads], NULL, watch, NULL) != 0)
        return 1;
    puts("up");
    fflush(stdout);
    for (int c; (c = getchar()) != EOF;) {
        if (c != '\n')
            continue;
        double gap = (double)__atomic_exchange_n(&longest, 0, __ATOMIC_RELAXED) / 1e6;
        printf("{\"pair_ns\": %.2f, \"longest_ms\": %.3f, \"bouts\": %lu}\n", pace(), gap, bouts);
        fflush(stdout);
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    for (long n = 0; n <= threads; n++)
        pthread_join(all[n], NULL);
    free(all);
    puts(wrong ? "wrong" : "well");
    return wrong != 0;
}
