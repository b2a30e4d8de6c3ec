/* Forks while other threads open and close libraries; each child allocates and ends. argv[1] is a library. */
#include "keep.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OPENERS = 4, FORKS = 1000 };
static volatile int over;

static void *open_and_close(void *path) {
    while (!over) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        free(keep(malloc(20)));
        if (library)
            dlclose(library);
    }
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[OPENERS];
    if (count < 2)
        return 2;
    for (int i = 0; i < OPENERS; i++)
        pthread_create(&threads[i], NULL, open_and_close, arguments[1]);
    int ended = 0;
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            free(keep(malloc(30)));
            _exit(7);
        }
        int status;
        ended += waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
    }
    over = 1;
    for (int i = 0; i < OPENERS; i++)
        pthread_join(threads[i], NULL);
    printf("%d children ended\n", ended);
    return 0;
}
