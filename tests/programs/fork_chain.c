/* A chain of argv[1] forks by the system call itself, each in the child of the one before, which all allocate a little. The last one
   prints how large it is, in kB. */
#define _GNU_SOURCE
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef SYS_fork
#define FORK() syscall(SYS_fork)
#else
#include <signal.h>
#define FORK() syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
#endif

static void print_size(void) {
    char line[200];
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file))
        if (strncmp(line, "VmSize:", 7) == 0)
            printf("%ld\n", atol(line + 7));
    fflush(stdout);
}

int main(int argc, char **argv) {
    int left = argc > 1 ? atoi(argv[1]) : 10;
    for (;; left--) {
        for (int i = 0; i < 100; i++)
            free(keep(malloc(64)));
        if (left == 0) {
            print_size();
            _exit(0);
        }
        int status;
        pid_t child = (pid_t)FORK();
        if (child != 0)
            _exit(child > 0 && waitpid(child, &status, 0) == child && status == 0 ? 0 : 1);
    }
}
