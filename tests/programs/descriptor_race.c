/* descriptor_race PROGRAM: one thread executes what can't be executed, another opens a file and looks at its number. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

extern char **environ;
static volatile int is_over;
static volatile long tries;
static char *program;

static void *executes(void *unused) {
    char *arguments[] = {program, NULL};
    while (!is_over) {
        execve(program, arguments, environ);
        tries++;
    }
    return unused;
}

int main(int argc, char **argv) {
    program = argv[argc - 1];
    int wanted = open("/dev/null", O_RDONLY);
    close(wanted);
    pthread_t thread;
    pthread_create(&thread, NULL, executes, NULL);
    int other = 0, lost = 0;
    for (int i = 0; i < 20000 || tries < 500; i++) {
        int file = open("/dev/null", O_RDONLY);
        other += file != wanted;
        lost += close(file) != 0;
    }
    is_over = 1;
    pthread_join(thread, NULL);
    printf("%d other numbers, %d lost\n", other, lost);
    return 0;
}
