/* Asks for what no block is as large as, in each way, and then for many small blocks. */
#include "keep.h"
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>

int main(void) {
    volatile size_t overlarge = ~(SIZE_MAX >> 8), one = 1;
    void *volatile block = keep(malloc(1000));
    if (keep(malloc(overlarge)) || keep(calloc(one, overlarge)) || keep(realloc(NULL, overlarge)) ||
        keep(realloc(block, overlarge)) || keep(memalign(64, overlarge)))
        abort();
    free(block);
    for (int i = 0; i < 100000; i++)
        free(keep(malloc(200)));
    return 0;
}
