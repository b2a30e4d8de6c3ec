/* argv[2] threads, argv[1] thousand pairs of malloc and free among them, from stacks of about twelve frames. */
#include "down.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { HELD = 500, MOST = 64 };

static unsigned long pairs;

static void *work(void *argument) {
    void *held[HELD] = {0};
    unsigned state = (unsigned)(size_t)argument + 1;
    for (unsigned long i = 0; i < pairs; i++) {
        state = state * 1664525 + 1013904223;
        unsigned at = (state >> 16) % HELD;
        free(held[at]);
        held[at] = down((int)((state >> 12) % 16), (state >> 8) % 800);
    }
    for (int i = 0; i < HELD; i++)
        free(held[i]);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[MOST];
    size_t count = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    if (count < 1 || count > MOST)
        return 1;
    pairs = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1000) * 1000 / count;
    for (size_t i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
