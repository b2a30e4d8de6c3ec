/* Eight threads allocate until they are killed. argv[1] is a file of 64-bit numbers that survives: for each thread,
   16 apart, how many allocations, frees and reallocations have returned. */
#include "keep.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 8, APART = 16 };

static volatile uint64_t *all;

static void *work(void *argument) {
    volatile uint64_t *mine = all + (intptr_t)argument * APART;
    void *slots[16] = {NULL};
    for (unsigned i = 0;; i++) {
        void **slot = &slots[i % 16];
        if (*slot) {
            free(*slot);
            mine[1]++;
        }
        *slot = keep(malloc(50 + i % 100));
        mine[0]++;
        if (i % 9 == 0) {
            *slot = keep(realloc(*slot, 400));
            mine[2]++;
        }
        if (i % 1024 == 0)
            usleep(50);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int fd = open(argv[argc - 1], O_RDWR);
    all = mmap(NULL, THREADS * APART * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (all == MAP_FAILED)
        return 1;
    close(fd);
    pthread_t thread;
    for (intptr_t i = 1; i < THREADS; i++)
        pthread_create(&thread, NULL, work, (void *)i);
    work((void *)0);
}
