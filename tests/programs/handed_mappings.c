/* Functions that libc calls, which end in a jump to mmap or munmap: what they map and unmap is the program's. Counted in whole
   mebibytes: of 1, 2, 4, 8, and 16 that are mapped only the last stays. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MIB ((size_t)1 << 20)

static void *map(size_t len) {
    return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void *of_thread, *of_handler, *of_end, *of_main;

static void *begin(void *len) {
    return mmap(NULL, (size_t)len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void handle(int signal) {
    (void)signal;
    munmap(of_handler, 2 * MIB);
}

static void end(void) {
    munmap(of_end, 4 * MIB);
}

int main(void) {
    pthread_t thread;
    void *stays;
    of_handler = keep(map(2 * MIB));
    of_end = keep(map(4 * MIB));
    of_main = keep(map(8 * MIB));
    if (pthread_create(&thread, NULL, begin, (void *)MIB) || pthread_join(thread, &of_thread))
        return 1;
    munmap(of_thread, MIB);
    if (pthread_create(&thread, NULL, begin, (void *)(16 * MIB)) || pthread_join(thread, &stays))
        return 1;
    signal(SIGUSR1, handle);
    raise(SIGUSR1);
    atexit(end);
    puts("done");
    fflush(stdout);
    return munmap(of_main, 8 * MIB);
}
