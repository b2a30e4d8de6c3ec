/* fork from the main thread and from another; children that allocate, free their parent's blocks, fork again,
 * and end in several ways. Each process prints through one write, and the parent waits: the order is fixed. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0)
        abort();
}

static void reap(pid_t child) {
    int status;
    char line[80];
    waitpid(child, &status, 0);
    snprintf(line, sizeof line, "exited %d status %d signal %d\n", WIFEXITED(status),
             WIFEXITED(status) ? WEXITSTATUS(status) : 0, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    say(line);
}

static void *from_thread(void *inherited) {
    pid_t child = fork();
    if (child == 0) {
        void *own[7];
        for (int i = 0; i < 7; i++)
            own[i] = keep(calloc(7, 7));
        free(own[0]);
        free(inherited);
        say("child of a thread\n");
        _exit(17);
    }
    reap(child);
    return NULL;
}

static void *idle(void *barrier) {
    free(keep(malloc(33)));
    pthread_barrier_wait(barrier);
    pthread_barrier_wait(barrier);
    return NULL;
}

int main(void) {
    void *mine = keep(malloc(1000)), *other = keep(malloc(2000));

    pid_t child = fork();
    if (child == 0) {
        void *p = keep(malloc(10));
        p = keep(realloc(p, 100));
        mine = keep(realloc(mine, 5000));
        say("child\n");
        pid_t grandchild = fork();
        if (grandchild == 0) {
            for (int i = 0; i < 11; i++)
                keep(malloc(11));
            free(p);
            say("grandchild\n");
            exit(4);
        }
        reap(grandchild);
        _exit(3);
    }
    reap(child);

    child = fork();
    if (child == 0) {
        for (int i = 0; i < 13; i++)
            keep(malloc(13));
        kill(getpid(), SIGKILL);
    }
    reap(child);

    pthread_t thread, second;
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&second, NULL, idle, &barrier);
    pthread_barrier_wait(&barrier);
    pthread_create(&thread, NULL, from_thread, other);
    pthread_join(thread, NULL);
    pthread_barrier_wait(&barrier);
    pthread_join(second, NULL);

    /* Many children in a row, none of which allocates. */
    for (int i = 0; i < 20; i++) {
        child = fork();
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
    }
    free(mine);
    say("parent\n");
    return 5;
}
