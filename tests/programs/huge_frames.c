/* Frames of a megabyte on a stack of a gigabyte, and threads with stacks of all sizes. */
#define _GNU_SOURCE
#include "keep.h"
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static NOINLINE long down(int depth) {
    volatile char frame[1 << 20];
    frame[0] = (char)depth;
    frame[sizeof frame - 1] = 1;
    free(keep(malloc((size_t)depth + 1)));
    return depth > 0 ? down(depth - 1) + frame[0] : frame[sizeof frame - 1];
}

static void *work(void *argument) {
    long depth = (long)argument;
    if (depth == 0) {
        free(keep(malloc(5)));
        return (void *)1L;
    }
    return (void *)down((int)depth);
}

static int run(size_t size, long depth) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, size);
    pthread_t thread;
    if (pthread_create(&thread, &attributes, work, (void *)depth) != 0)
        return 0;
    void *result;
    pthread_join(thread, &result);
    return result != NULL;
}

int main(void) {
    int done = run((size_t)1 << 30, 600);
    for (size_t size = (size_t)PTHREAD_STACK_MIN; size < (size_t)1 << 28; size *= 4)
        done += run(size, 0);
    printf("done %d\n", done);
    return 0;
}
