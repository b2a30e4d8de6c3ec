/* changing_environment COUNT PROGRAM: starts the program so many times, while another thread adds and takes away the last of its
   variables. Prints how often it did not start: at the kernel's refusal that may be. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

static char *volatile variables[24];
static volatile int is_over;

static void *changes(void *unused) {
    while (!is_over) {
        /* A few, one of them a long one that the agent has to write anew. */
        for (int i = 10; i < 20; i++)
            variables[i] = i == 15 ? "LD_PRELOAD=" : "A=1";
        for (int i = 19; i >= 10; i--)
            variables[i] = NULL;
    }
    return unused;
}

int main(int argc, char **argv) {
    int count = argc > 2 ? atoi(argv[1]) : 0, odd = 0;
    for (int i = 0; i < 10; i++)
        variables[i] = "V=1";
    pthread_t thread;
    pthread_create(&thread, NULL, changes, NULL);
    for (int i = 0; i < count; i++) {
        pid_t pid;
        int status = -1;
        char *arguments[] = {argv[argc - 1], NULL};
        int error = posix_spawn(&pid, arguments[0], NULL, NULL, arguments, (char **)variables);
        if (error == EFAULT)
            continue;
        if (error != 0 || waitpid(pid, &status, 0) != pid || status != 0)
            odd++;
    }
    is_over = 1;
    pthread_join(thread, NULL);
    printf("%d odd ends\n", odd);
    return 0;
}
