/* Forks sixty times while three threads allocate as fast as they can. Each child makes a hundred allocations
 * of its own and ends. */
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int over;

static NOINLINE void hammer_once(unsigned *state) {
    *state = *state * 1664525 + 1013904223;
    free(keep(malloc(*state >> 20)));
}

static void *hammer(void *argument) {
    unsigned state = (unsigned)(size_t)argument;
    while (!over)
        hammer_once(&state);
    return NULL;
}

int main(void) {
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, hammer, (void *)i);
    int good = 0;
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (int j = 0; j < 100; j++)
                keep(malloc(21));
            _exit(42);
        }
        int status = 0;
        waitpid(child, &status, 0);
        good += WIFEXITED(status) && WEXITSTATUS(status) == 42;
    }
    over = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("good %d\n", good);
    return 0;
}
