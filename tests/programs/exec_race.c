/* Becomes another program while four threads allocate as fast as they can. */
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void *hammer(void *argument) {
    for (;;)
        free(keep(malloc((size_t)rand() % 1000)));
    return argument;
}

int main(int argc, char **argv) {
    int rest = argc > 1 ? atoi(argv[1]) : 5;
    if (rest == 0) {
        for (int i = 0; i < 123; i++)
            keep(malloc(9));
        return 0;
    }
    pthread_t thread;
    for (int i = 0; i < 4; i++)
        pthread_create(&thread, NULL, hammer, NULL);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    char text[12];
    snprintf(text, sizeof text, "%d", rest - 1);
    execl(argv[0], argv[0], text, (char *)NULL);
    return 1;
}
