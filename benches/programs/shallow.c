/* One thread, one stack of six frames, argv[1] thousand pairs of malloc and free with a working set of 1,000 blocks. */
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline, noclone))

static void *volatile held[1000];

static NOINLINE void exchange(unsigned at, size_t size) {
    free(held[at]);
    held[at] = malloc(size);
}

static NOINLINE unsigned step(unsigned state) {
    state = state * 1664525 + 1013904223;
    exchange((state >> 16) % 1000, (state >> 8) % 1000);
    return state;
}

int main(int argc, char **argv) {
    unsigned long pairs = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1000) * 1000;
    unsigned state = 1;
    for (unsigned long i = 0; i < pairs; i++)
        state = step(state);
    printf("%u\n", state);
    return 0;
}
