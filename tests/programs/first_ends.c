/* The first thread ends, and others go on for about a minute. */
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *work(void *nothing) {
    for (int i = 0; i < 3000; i++) {
        for (size_t size = 1; size < 100; size++)
            free(keep(malloc(size)));
        usleep(20000);
    }
    return nothing;
}

int main(void) {
    pthread_t thread;
    for (int i = 0; i < 3; i++)
        pthread_create(&thread, NULL, work, NULL);
    puts("ready");
    fflush(stdout);
    pthread_exit(NULL);
}
