/* Copies lines from stdin to stdout with getline, and says on stderr how many. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    char *line = NULL;
    size_t size = 0;
    int count = 0;
    while (getline(&line, &size, stdin) > 0) {
        fputs(line, stdout);
        count++;
    }
    free(line);
    fprintf(stderr, "%d lines\n", count);
    return count % 50;
}
