/* For argv[1] tenths of a second: allocates, and forks children that do nothing. Prints a line when it begins, and how many there were. */
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv) {
    double end = now() + 0.1 * (argc > 1 ? atof(argv[1]) : 10);
    long forks = 0;
    puts("there");
    fflush(stdout);
    while (now() < end) {
        for (int i = 0; i < 20; i++)
            free(keep(malloc(50)));
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(42);
        if (child < 0 || waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 42)
            return 1;
        forks++;
    }
    printf("%ld\n", forks);
    return 0;
}
