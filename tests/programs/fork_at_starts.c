/* Forks while threads begin: in each round eight threads that allocate for the first time, and a child that makes a
 * hundred allocations of its own. In every twentieth round it is one thread, which does so while it has the lock of
 * stdio's list, for which the fork waits. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *allocate(void *argument) {
    for (int i = 0; i < 20; i++)
        free(keep(malloc(33)));
    return argument;
}

static _Atomic int is_writing;

/* What a stream writes to. */
static ssize_t take(void *cookie, const char *bytes, size_t count) {
    (void)bytes;
    is_writing = 1;
    /* The fork comes meanwhile, as a rule. */
    usleep(5000);
    allocate(cookie);
    return (ssize_t)count;
}

static void *flush_all(void *argument) {
    fflush(NULL);
    return argument;
}

int main(void) {
    FILE *stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = take});
    int good = 0;
    for (int round = 0; round < 100; round++) {
        pthread_t threads[8];
        int count = 8;
        if (round % 20 == 0) {
            count = 1;
            is_writing = 0;
            fputs("some", stream);
            pthread_create(&threads[0], NULL, flush_all, NULL);
            while (!is_writing)
                ;
        } else {
            for (int i = 0; i < count; i++)
                pthread_create(&threads[i], NULL, allocate, NULL);
        }
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < 100; i++)
                keep(malloc(21));
            _exit(42);
        }
        int status = 0;
        waitpid(child, &status, 0);
        good += WIFEXITED(status) && WEXITSTATUS(status) == 42;
        for (int i = 0; i < count; i++)
            pthread_join(threads[i], NULL);
    }
    printf("good %d\n", good);
    return 0;
}
