/* Threads with the smallest stack that pthread allows, allocating from near its end. Whoever runs in these
 * threads has a few KiB. */
#define _GNU_SOURCE
#include "keep.h"
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static NOINLINE int deeper(int depth) {
    volatile char room[128];
    room[0] = (char)depth;
    if (depth == 0) {
        void *block = keep(malloc(1000));
        block = keep(realloc(block, 3000));
        int ok = block != NULL;
        free(block);
        return ok + room[0];
    }
    return deeper(depth - 1) + (room[0] == 127);
}

static void *work(void *argument) {
    (void)argument;
    int sum = 0;
    for (int i = 0; i < 20; i++)
        sum += deeper(10);
    return (void *)(long)sum;
}

int main(void) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    size_t size = (size_t)sysconf(_SC_THREAD_STACK_MIN);
    if (pthread_attr_setstacksize(&attributes, size) != 0)
        return 1;
    long sum = 0;
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;
        if (pthread_create(&thread, &attributes, work, NULL) != 0)
            return 2;
        pthread_join(thread, &result);
        sum += (long)result;
    }
    printf("sum %ld\n", sum);
    return 0;
}
