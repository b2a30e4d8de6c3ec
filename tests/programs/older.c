/* Has blocks before anybody attaches. At each line of input it goes on to the next of these, and says so in a line: how many
   blocks it has of its own, and how many of their bytes may be used.
   1: four threads have begun, and nothing else
   2: all threads have blocks of many kinds, and have freed some; of each other's, too. A fifth one has ended, and left its own
   3: what the program has of its own is freed, from the first thread
   With "broken" the heap is overwritten at 2, with "freed-over" a block that was freed, with "lost" there are 5,000 blocks of 123 bytes besides that nobody has, with
   "storm" all threads but the first go on to allocate and free. With "unaligned" behind that, no alignment is asked for. With "narrow" threads
   have one heap, and what libc gets for a thread is 16 bytes larger than asked for. */
#include "keep.h"
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, ALL = THREADS + 2, MOST = 60000 };

static void **all[ALL];
static size_t counts[ALL];
static pthread_barrier_t begun, done;
static const char *how = "";
static int is_unaligned;

static size_t number(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void have(int who, void *block) {
    if (!block || counts[who] == MOST)
        abort();
    all[who][counts[who]++] = block;
}

/* Frees one of them, which another takes the place of. */
static void give_up(int who, size_t which) {
    free(all[who][which]);
    all[who][which] = all[who][--counts[who]];
}

static void *aligned(size_t alignment, size_t size) {
    return keep(is_unaligned ? malloc(size) : memalign(alignment, size));
}

static void work(int who) {
    uint64_t state = (uint64_t)who + 1;
    for (int i = 0; i < 20000; i++) {
        size_t size = number(&state) % (i % 50 ? 700 : 40000);
        have(who, keep(malloc(size)));
        if (i % 3 == 0)
            give_up(who, number(&state) % counts[who]);
    }
    for (int i = 0; i < 200; i++) {
        void *block = NULL;
        if (is_unaligned)
            block = malloc(number(&state) % 5000);
        else if (posix_memalign(&block, (size_t)16 << (i % 9), number(&state) % 5000))
            abort();
        have(who, block);
        have(who, keep(calloc(number(&state) % 100 + 1, 8)));
        have(who, keep(realloc(NULL, number(&state) % 1000 + 1)));
    }
    /* With mappings of their own: plain, aligned, and grown. */
    for (int i = 0; i < 3; i++) {
        have(who, keep(malloc(((size_t)40 << 20) + (size_t)i * 5000)));
        have(who, aligned((size_t)32 << (3 * i), (size_t)41 << 20));
        have(who, keep(realloc(aligned((size_t)64 << i, (size_t)42 << 20), (size_t)43 << 20)));
        give_up(who, counts[who] - 2 - (size_t)(i % 2));
    }
    /* All lists of the cache, and of small blocks: more of each size than the cache takes. */
    void *small[64][12];
    for (size_t i = 0; i < 64; i++)
        for (size_t j = 0; j < 12; j++)
            small[i][j] = keep(malloc(16 * i + 8));
    for (size_t i = 0; i < 64; i++)
        for (size_t j = 0; j < 12; j++)
            if (j != 5)
                free(small[i][j]);
            else
                have(who, small[i][j]);
}

/* Gets and frees blocks of all sizes for ever. */
static void storm(int who) {
    void *mine[256] = {0};
    uint64_t state = (uint64_t)who;
    for (;;) {
        size_t at = number(&state) % 256, size = number(&state) % 100 ? number(&state) % 3000 : 30000;
        /* Other work. */
        for (int i = 0; i < 2000; i++)
            keep(NULL);
        if (number(&state) % 4 && mine[at]) {
            mine[at] = keep(realloc(mine[at], size + 1));
            continue;
        }
        free(mine[at]);
        mine[at] = keep(malloc(size));
    }
}

static void *ending(void *argument) {
    return argument;
}

/* Works, and ends. */
static void *passing(void *argument) {
    work((int)(intptr_t)argument);
    return NULL;
}

/* Gives back a third of what other threads have. */
static void take_from_others(void) {
    for (int who = 1; who < ALL; who++)
        for (size_t i = counts[who] / 3; i > 0; i--)
            give_up(who, i * 2);
}

/* Forgets blocks. */
static NOINLINE void lose(void) {
    for (int i = 0; i < 5000; i++)
        memset(keep(malloc(123)), 0, 123);
}

/* From here on a thread's cache has a place that is 16 bytes too large for it: what is left is too little for a chunk. */
static void narrow(void) {
    enum { COUNT = 40 };
    /* Chunks of caches until glibc 2.29, 2.41, and since. */
    static const size_t sizes[] = {0x250, 0x290, 0x300};
    void *blocks[3][COUNT];
    mallopt(M_ARENA_MAX, 1);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < COUNT; j++) {
            blocks[i][j] = keep(malloc(sizes[i] + 16 - 8));
            /* So that they don't become one. */
            keep(malloc(24));
        }
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < COUNT; j++)
            free(blocks[i][j]);
}

static void *thread(void *argument) {
    int who = (int)(intptr_t)argument;
    if (!strcmp(how, "narrow"))
        free(keep(malloc(24)));
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&begun);
    work(who);
    pthread_barrier_wait(&done);
    if (!strcmp(how, "storm"))
        storm(who);
    for (;;)
        pause();
    return NULL;
}

static void tell(int stage) {
    size_t blocks = 0, bytes = 0;
    for (int who = 0; who < ALL; who++)
        for (size_t i = 0; i < counts[who]; i++) {
            blocks++;
            bytes += malloc_usable_size(all[who][i]);
        }
    char line[100];
    int len = snprintf(line, sizeof line, "%d %zu %zu\n", stage, blocks, bytes);
    if (write(1, line, (size_t)len) != len)
        abort();
}

static void next(void) {
    char byte;
    do
        if (read(0, &byte, 1) != 1)
            _exit(0);
    while (byte != '\n');
}

int main(int argc, char **argv) {
    static void *room[ALL][MOST];
    for (int who = 0; who < ALL; who++)
        all[who] = room[who];
    if (argc > 1)
        how = argv[1];
    is_unaligned = argc > 2 && !strcmp(argv[2], "unaligned");
    /* The main thread's cache and heap are there. */
    free(keep(malloc(100)));
    if (!strcmp(how, "narrow"))
        narrow();
    pthread_barrier_init(&begun, NULL, THREADS + 1);
    pthread_barrier_init(&done, NULL, THREADS + 1);
    for (intptr_t who = 1; who <= THREADS; who++) {
        pthread_t id;
        if (pthread_create(&id, NULL, thread, (void *)who))
            abort();
    }
    /* What libc keeps of a thread that has ended is there, too. */
    pthread_t id;
    if (pthread_create(&id, NULL, ending, NULL) || pthread_join(id, NULL))
        abort();
    pthread_barrier_wait(&begun);
    tell(1);
    next();
    pthread_barrier_wait(&begun);
    work(0);
    if (pthread_create(&id, NULL, passing, (void *)(intptr_t)(THREADS + 1)) || pthread_join(id, NULL))
        abort();
    pthread_barrier_wait(&done);
    if (strcmp(how, "storm"))
        take_from_others();
    if (!strcmp(how, "lost"))
        lose();
    if (!strcmp(how, "freed-over")) {
        /* What links a block that was freed to others is overwritten. */
        size_t *block = keep(malloc(1000)), *gone = keep(block);
        free(block);
        size_t old = *(size_t *)keep(gone);
        *(size_t *)keep(gone) = 0x4141414141414141;
        tell(2);
        next();
        *(size_t *)keep(gone) = old;
    } else if (!strcmp(how, "broken")) {
        /* The size of a block's neighbour is overwritten. */
        size_t *block = keep(malloc(1000)), old = block[125];
        have(0, block);
        block[125] = 0x4141414141414141;
        tell(2);
        next();
        block[125] = old;
    } else {
        tell(2);
        next();
    }
    for (int who = 0; who < ALL; who++)
        while (counts[who])
            give_up(who, counts[who] - 1);
    tell(3);
    for (;;)
        next();
}
