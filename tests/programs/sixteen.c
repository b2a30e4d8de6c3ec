// Sixteen threads at work that look after themselves: what they keep in registers, in vectors and in blocks stays, waits
// last as long as they should and aren't interrupted, and no signal is blocked that wasn't. The first fault ends it.
//
//   sixteen TENTHS [THREADS]   for so many tenths of a second, with a line in each; 16 threads, or as many
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 16, BLOCKS = 64 };

static void fault(char const *what) {
    fprintf(stderr, "sixteen: %s\n", what);
    _exit(1);
}

static void wait_a_little(void) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    if (poll(NULL, 0, 2) != 0)
        fault(strerror(errno));
    clock_gettime(CLOCK_MONOTONIC, &after);
    if ((after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec < 2000000)
        fault("a wait was too short");
}

static double add_up(uint64_t seed) {
    double sums[8] = {0};
    for (int n = 0; n < 4000; ++n)
        for (int lane = 0; lane < 8; ++lane)
            sums[lane] += (double)((seed + (uint64_t)(n * lane)) % 1000) / 7;
    double all = 0;
    for (int lane = 0; lane < 8; ++lane)
        all += sums[lane];
    return all;
}

static void *work(void *number) {
    uint64_t const me = (uint64_t)(uintptr_t)number;
    double const expected = add_up(me);
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    unsigned char *kept[BLOCKS] = {0};
    size_t sizes[BLOCKS] = {0};
    for (uint64_t turn = 0;; ++turn) {
        for (int n = 0; n < 50; ++n) {
            size_t const at = (turn * 31 + (uint64_t)n * 17) % BLOCKS;
            unsigned char const fill = (unsigned char)(me * 16 + at);
            for (size_t byte = 0; byte < sizes[at]; ++byte)
                if (kept[at][byte] != fill)
                    fault("a block isn't what it was");
            size_t const size = 1 + (turn * 7 + (uint64_t)n * 131) % 3000;
            unsigned char *const block = n % 3 ? malloc(size) : realloc(kept[at], size);
            if (n % 3)
                free(kept[at]);
            if (!block)
                fault("no memory");
            memset(block, fill, size);
            kept[at] = block;
            sizes[at] = size;
        }
        if (add_up(me) != expected)
            fault("a sum isn't what it was");
        if ((turn + me) % 4 == 0)
            wait_a_little();
        sigset_t now;
        pthread_sigmask(SIG_BLOCK, NULL, &now);
        if (memcmp(&now, &blocked, 8) != 0)
            fault("other signals are blocked");
    }
    return NULL;
}

int main(int argc, char **argv) {
    int const tenths = argc > 1 ? atoi(argv[1]) : 10;
    uintptr_t const threads = argc > 2 ? (uintptr_t)atoi(argv[2]) : THREADS;
    for (uintptr_t n = 1; n < threads; ++n) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)n))
            fault("no thread");
    }
    for (int n = 0; n < tenths; ++n) {
        struct timespec const tenth = {0, 100000000};
        if (nanosleep(&tenth, NULL))
            fault(strerror(errno));
        puts("at work");
        fflush(stdout);
    }
    return 0;
}
