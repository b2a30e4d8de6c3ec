/* Gives up its root directory (for argv[1]) and its rights, and then needs new rings: for threads, and for a child. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static NOINLINE void *afterwards(void *argument) {
    for (int i = 0; i < 1000; i++)
        free(keep(malloc(50)));
    return argument;
}

static NOINLINE void in_child(void) {
    for (int i = 0; i < 77; i++)
        keep(malloc(60));
}

int main(int argc, char **argv) {
    if (argc < 2 || chroot(argv[1]) != 0 || chdir("/") != 0)
        return 1;
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
        return 2;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    pthread_t threads[6];
    for (int i = 0; i < 6; i++)
        if (pthread_create(&threads[i], NULL, afterwards, NULL) != 0)
            return 3;
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        in_child();
        _exit(5);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("child %d uid %d\n", WEXITSTATUS(status), (int)getuid());
    return 0;
}
