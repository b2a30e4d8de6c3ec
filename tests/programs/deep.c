/* Recursion without frame pointers to the depth of argv[1], through two functions in turn with frames of
 * different sizes; three allocations at the bottom and one at every tenth level. */
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static NOINLINE void *bottom(size_t size) {
    void *block = keep(malloc(size));
    __asm__ volatile("" : : : "memory");
    return block;
}

static NOINLINE int even(int depth);

static NOINLINE int odd(int depth) {
    volatile char room[40];
    memset((char *)room, depth, sizeof room);
    int below = depth <= 1 ? bottom(123) != NULL : even(depth - 1);
    return below + (room[7] == (char)depth);
}

static NOINLINE int even(int depth) {
    volatile char room[200];
    memset((char *)room, depth, sizeof room);
    if (depth % 10 == 0)
        free(keep(malloc((size_t)depth)));
    int below = depth <= 1 ? bottom(123) != NULL : odd(depth - 1);
    return below + (room[150] == (char)depth);
}

int main(int argc, char **argv) {
    int depth = argc > 1 ? atoi(argv[1]) : 60;
    int sum = 0;
    for (int i = 0; i < 3; i++)
        sum += even(depth);
    printf("sum %d\n", sum);
    return 0;
}
