/* A million live blocks from 700,000 stacks of twelve frames: after a million allocations, argv[1] thousand steps, each of
 * which frees a block at random and allocates another from a stack at random. */
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline, noclone))

enum { LIVE = 1000000, STACKS = 700000, DEPTH = 8 };
static void *held[LIVE];
static unsigned long long state = 1;

static unsigned next(void) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(state >> 33);
}

/* At each level one of six functions, by the path's next digit: 6^8 paths. */
#define LEVEL(n) static NOINLINE void *level_##n(int depth, unsigned path, size_t size)
LEVEL(0);
LEVEL(1);
LEVEL(2);
LEVEL(3);
LEVEL(4);
LEVEL(5);

static inline __attribute__((always_inline)) void *body(int depth, unsigned path, size_t size) {
    void *block;
    if (depth == 0)
        block = malloc(size);
    else
        switch (path % 6) {
        case 0: block = level_0(depth - 1, path / 6, size); break;
        case 1: block = level_1(depth - 1, path / 6, size); break;
        case 2: block = level_2(depth - 1, path / 6, size); break;
        case 3: block = level_3(depth - 1, path / 6, size); break;
        case 4: block = level_4(depth - 1, path / 6, size); break;
        default: block = level_5(depth - 1, path / 6, size); break;
        }
    __asm__ volatile("" : : : "memory"); /* no tail calls */
    return block;
}

/* The number keeps the compiler from taking them for one function. */
#define BODY(n) LEVEL(n) { __asm__ volatile("# %0" : : "i"(n)); return body(depth, path, size); }
BODY(0)
BODY(1)
BODY(2)
BODY(3)
BODY(4)
BODY(5)

static void *give(void) {
    /* Numbers of paths with no common beginnings. */
    unsigned path = (unsigned)((unsigned long)(next() % STACKS) * 1000003 % 1679616);
    return body(DEPTH - 1, path, 16 + next() % 100);
}

int main(int argc, char **argv) {
    unsigned long steps = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1000) * 1000;
    for (unsigned i = 0; i < LIVE; i++)
        held[i] = give();
    for (unsigned long i = 0; i < steps; i++) {
        unsigned at = next() % LIVE;
        free(held[at]);
        held[at] = give();
    }
    printf("%llu\n", state);
    return 0;
}
