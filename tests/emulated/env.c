/*
 * `env NAME=VALUE... PROGRAM ARGUMENTS...` for a machine that the host's own can't be run on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int at = 1;
    for (; at < argc && strchr(argv[at], '='); at++)
        if (putenv(argv[at]) != 0)
            return 125;
    if (at >= argc)
        return 125;
    execv(argv[at], argv + at);
    perror(argv[at]);
    return 126;
}
