/* Forks while another thread opens libraries; each child opens one, too. argv: how many microseconds to wait first, two libraries for
 * the thread, and one for the children. A child that can't go on is ended by its alarm. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMES = 3, CHILDREN = 6, SECONDS = 10 };
static volatile int ready;

static void *open_both(void *paths) {
    ready = 1;
    for (int i = 0; i < TIMES; i++)
        for (char **path = paths, **end = path + 2; path < end; path++)
            if (!dlopen(*path, RTLD_NOW | RTLD_LOCAL))
                puts(dlerror());
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 5)
        return 2;
    pthread_t opener;
    pthread_create(&opener, NULL, open_both, arguments + 2);
    while (!ready)
        ;
    usleep((useconds_t)atoi(arguments[1]));
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            alarm(SECONDS);
            _exit(dlopen(arguments[4], RTLD_NOW) ? 0 : 1);
        }
        usleep(150);
    }
    int hung = 0;
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        hung += waitpid(children[i], &status, 0) != children[i] || status != 0;
    }
    pthread_join(opener, NULL);
    return hung != 0;
}
