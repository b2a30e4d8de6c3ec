/* argv[1] thousand allocations from argv[2] different stacks: a trace of many megabytes. */
#include "deep.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    unsigned thousands = argc > 1 ? (unsigned)atoi(argv[1]) : 100, stacks = argc > 2 ? (unsigned)atoi(argv[2]) : 1024;
    enum { RING = 4096 };
    static void *ring[RING];
    unsigned state = 1;
    for (unsigned i = 0; i < thousands * 1000; i++) {
        state = state * 1664525 + 1013904223;
        free(ring[state >> 20]);
        ring[state >> 20] = down((state >> 8) % stacks, 12, (state >> 12) % 500);
    }
    printf("flooded\n");
    return 0;
}
