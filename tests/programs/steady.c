/* Works for about argv[1] tenths of a second, a line of output each, with 2,000 events each. */
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
    int tenths = argc > 1 ? atoi(argv[1]) : 10;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < tenths; i++) {
        for (int j = 0; j < 1000; j++) {
            void *block = keep(malloc((size_t)(j + 1)));
            if (j % 10)
                free(block);
        }
        printf("tenth %d\n", i);
        nanosleep(&(struct timespec){0, 100000000}, NULL);
    }
    return 12;
}
