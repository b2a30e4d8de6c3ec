/* argv[1] blocks of 2 MiB in each of 3 threads, from stacks of which hardly two are alike: where one in 64 KiB is recorded, each of them is,
 * at once and with many words. */
#include "deep.h"
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 2 << 20, DEPTH = 40, THREADS = 3 };

static unsigned blocks;

static void *work(void *argument) {
    uint64_t state = (uintptr_t)argument + 1;
    for (unsigned i = 0; i < blocks; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        free(down(state >> 20, DEPTH, SIZE));
    }
    return NULL;
}

int main(int argc, char **argv) {
    blocks = argc > 1 ? (unsigned)atoi(argv[1]) : 1000;
    // No block is a mapping of its own, and none goes back to the system.
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i) != 0)
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
