/* One thread, one stack, argv[1] thousand pairs of malloc and free with a working set of 1,000 blocks. */
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    static void *volatile held[1000];
    unsigned long pairs = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1000) * 1000;
    unsigned state = 1;
    for (unsigned long i = 0; i < pairs; i++) {
        state = state * 1664525 + 1013904223;
        unsigned at = (state >> 16) % 1000;
        free(held[at]);
        held[at] = malloc((state >> 8) % 1000);
    }
    printf("%u\n", state);
    return 0;
}
