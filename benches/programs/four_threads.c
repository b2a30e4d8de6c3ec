/* Four threads, argv[1] thousand pairs each, from stacks of about ten frames. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline, noclone))

static unsigned long pairs;

static NOINLINE void *down(int depth, size_t size) {
    volatile char room[16];
    room[0] = (char)depth;
    void *block = depth == 0 ? malloc(size) : down(depth - 1, size);
    return room[0] == (char)depth ? block : NULL;
}

static void *work(void *argument) {
    void *held[500] = {0};
    unsigned state = (unsigned)(size_t)argument + 1;
    for (unsigned long i = 0; i < pairs; i++) {
        state = state * 1664525 + 1013904223;
        unsigned at = (state >> 16) % 500;
        free(held[at]);
        held[at] = down((int)((state >> 12) % 16), (state >> 8) % 800);
    }
    for (int i = 0; i < 500; i++)
        free(held[i]);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    pairs = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1000) * 1000;
    for (size_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
