/* All signals blocked, in all threads, and still so afterwards. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static int blocked(void) {
    sigset_t now;
    int count = 0;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    for (int i = 1; i <= SIGRTMAX; i++)
        count += sigismember(&now, i) == 1;
    return count;
}

static void *work(void *argument) {
    for (int i = 0; i < 500; i++)
        free(keep(malloc((size_t)i)));
    return blocked() == *(int *)argument ? argument : NULL;
}

int main(void) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    int before = blocked(), same = 0;
    for (int i = 0; i < 5000; i++)
        free(keep(malloc((size_t)i)));
    for (int i = 0; i < 8; i++) {
        pthread_t thread;
        void *result;
        if (pthread_create(&thread, NULL, work, &before) != 0)
            return 1;
        pthread_join(thread, &result);
        same += result != NULL;
    }
    printf("%d %d %d\n", before > 50, blocked() == before, same);
    return 0;
}
