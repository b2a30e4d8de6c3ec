/* malloc called from stacks of a depth that is asked for. */
#include <stdlib.h>

#define NOINLINE __attribute__((noinline, noclone))

static NOINLINE void *down(int depth, size_t size) {
    volatile char room[16];
    room[0] = (char)depth;
    void *block = depth == 0 ? malloc(size) : down(depth - 1, size);
    return room[0] == (char)depth ? block : NULL;
}
