/* One thread, stacks of 40 frames that vary: each step moves a few frames up and down a tree of three
 * functions, and allocates there. argv[1] thousand steps. */
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline, noclone))

enum { DEPTH = 40, HELD = 4096 };
static void *volatile held[HELD];
static unsigned long left;
static unsigned state = 1;

static unsigned next(void) {
    state = state * 1664525 + 1013904223;
    return state >> 10;
}

static NOINLINE void touch(void) {
    unsigned at = next() % HELD;
    free(held[at]);
    held[at] = malloc(next() % 500);
    left--;
}

static NOINLINE void one(int depth);
static NOINLINE void two(int depth);
static NOINLINE void three(int depth);

static inline __attribute__((always_inline)) void body(int depth) {
    while (left > 0) {
        if (depth >= DEPTH) {
            for (unsigned n = next() % 4; n > 0 && left > 0; n--)
                touch();
            return;
        }
        switch (next() % 3) {
        case 0: one(depth + 1); break;
        case 1: two(depth + 1); break;
        default: three(depth + 1); break;
        }
        /* Deep frames are left often, those near the root seldom. */
        if (next() % 3 != 0)
            break;
    }
    __asm__ volatile("" : : : "memory"); /* no tail calls */
}

static NOINLINE void one(int depth) { body(depth); }
static NOINLINE void two(int depth) { body(depth); }
static NOINLINE void three(int depth) { body(depth); }

int main(int argc, char **argv) {
    left = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1000) * 1000;
    while (left > 0)
        one(1);
    printf("%u\n", state);
    return 0;
}
