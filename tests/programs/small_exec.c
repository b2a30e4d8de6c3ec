/* small_exec VARIABLES PROGRAM: a thread with a stack of 16 KiB executes the program with so many variables, in the child of a vfork. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char texts[2000][16], *variables[2001], *program;

static void *executes(void *unused) {
    /* What is left is enough for the C library. */
    volatile char used[5000];
    memset((char *)used, 1, sizeof used);
    char *arguments[] = {program, NULL};
    pid_t pid = vfork();
    if (pid == 0) {
        execve(program, arguments, variables);
        _exit(7);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    printf("status %x\n", (unsigned)status);
    return unused;
}

int main(int argc, char **argv) {
    int count = argc > 2 ? atoi(argv[1]) : 0;
    program = argv[argc - 1];
    for (int i = 0; i < count && i < 2000; i++) {
        snprintf(texts[i], sizeof texts[i], "V%d=1", i);
        variables[i] = texts[i];
    }
    /* The room that this takes of the stack it does not take of the thread's. */
    printf("%d variables\n", count);
    fflush(stdout);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    if (pthread_create(&thread, &attributes, executes, NULL) != 0)
        return 3;
    pthread_join(thread, NULL);
    return 0;
}
