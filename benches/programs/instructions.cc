// Pairs of new and delete below 40 frames, some three of which are others each time. Reads a byte of its input before them and
// one behind: between these its steps are counted.

#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#define FRAME __attribute__((noinline))

static unsigned long state = 88172645463325252ul;
static void *kept[64];
static volatile int sink;

static unsigned next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 11;
}

FRAME static void small(unsigned n) {
    operator delete(kept[n % 64]);
    kept[n % 64] = operator new(16 + n / 64 % 128);
    sink = sink + 1;
}

FRAME static void large(unsigned n) {
    operator delete(kept[n % 64]);
    kept[n % 64] = operator new(200 + n / 64 % 512);
    sink = sink + 2;
}

FRAME static void either(unsigned n) {
    if (n & 64)
        small(n);
    else
        large(n);
    sink = sink + 1;
}

FRAME static void both(unsigned n) {
    volatile char frame[40];
    frame[n % 40] = 1;
    sink = frame[n % 40];
    large(n);
    small(n >> 3);
    sink = sink + 1;
}

FRAME static void one(unsigned n) {
    switch (n >> 20 & 3) {
    case 0: either(n); break;
    case 1: both(n); break;
    default: small(n);
    }
    sink = sink + 1;
}

FRAME static void other(unsigned n) {
    volatile char frame[100];
    frame[n % 100] = 1;
    sink = frame[n % 100];
    switch (n >> 22 & 3) {
    case 0: both(n); break;
    case 1: one(n); break;
    case 2: either(n); break;
    default: large(n);
    }
    sink = sink + 1;
}

FRAME static void rounds(long count) {
    for (long round = 0; round < count; round++) {
        unsigned n = next();
        if (n >> 25 & 1)
            one(n);
        else
            other(n);
    }
}

FRAME static void deep(int frames, long count) {
    volatile char frame[64];
    frame[frames] = 1;
    sink = frame[frames];
    if (frames)
        deep(frames - 1, count);
    else
        rounds(count);
    sink = sink + 1;
}

int main(int, char **arguments) {
    char byte;
    deep(35, 20000);
    printf("%d\n", getpid());
    fflush(stdout);
    if (read(0, &byte, 1) != 1)
        return 1;
    deep(35, atol(arguments[1]));
    return read(0, &byte, 1) != 1;
}
