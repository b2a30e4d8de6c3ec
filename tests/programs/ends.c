/* Ends in the way that argv[1] names, in the middle of its work. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *wait_for_ever(void *argument) {
    keep(malloc(5));
    pthread_barrier_wait(argument);
    while (argument)
        pause();
    return NULL;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "return";
    for (int i = 0; i < 3000; i++) {
        void *block = keep(malloc((size_t)(i % 100 + 1)));
        if (i % 3)
            free(block);
    }
    if (write(1, "working\n", 8) != 8)
        return 99;
    if (strncmp(how, "thread-", 7) == 0) {
        /* With another thread alive. */
        pthread_t thread;
        pthread_barrier_t barrier;
        pthread_barrier_init(&barrier, NULL, 2);
        pthread_create(&thread, NULL, wait_for_ever, &barrier);
        pthread_barrier_wait(&barrier);
        how += 7;
    }
    if (strcmp(how, "kill") == 0)
        kill(getpid(), SIGKILL);
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "segv") == 0)
        *(volatile int *)keep((void *)8) = 1;
    if (strcmp(how, "term") == 0)
        raise(SIGTERM);
    if (strcmp(how, "_exit") == 0)
        _exit(7);
    if (strcmp(how, "exit") == 0)
        exit(8);
    if (strcmp(how, "quick_exit") == 0)
        quick_exit(9);
    if (strcmp(how, "syscall") == 0)
        syscall(SYS_exit_group, 10);
    if (strcmp(how, "pthread_exit") == 0)
        pthread_exit(NULL);
    return 11;
}
