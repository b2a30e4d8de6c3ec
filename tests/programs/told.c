/* Every block's size says which stack it was asked from: a hash of the functions between `work` and `malloc`. argv[1] says how
 * many blocks each piece of work asks for, argv[2] who works: "first", the first thread; "threads", it and four others;
 * "forks", it and its children, and theirs; "thread-forks", the children of a second thread, and a thread of theirs. */
#include "keep.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 256, DEEPEST = 8, FUNCTIONS = 3 };

struct piece {
    uint64_t random;
    long left;
    void *slots[SLOTS];
};

static long blocks;

static unsigned next(struct piece *piece) {
    piece->random ^= piece->random << 13;
    piece->random ^= piece->random >> 7;
    piece->random ^= piece->random << 17;
    return (unsigned)(piece->random >> 20);
}

static NOINLINE void wander(struct piece *piece, int depth, unsigned hash);

#define WAY(n)                                                                                                         \
    static NOINLINE void way_##n(struct piece *piece, int depth, unsigned hash) {                                      \
        wander(piece, depth, (hash ^ (n + 1)) * 16777619u);                                                            \
        __asm__ volatile("# %0" : : "i"(n) : "memory");                                                                \
    }
WAY(0)
WAY(1)
WAY(2)

static void (*const ways[FUNCTIONS])(struct piece *, int, unsigned) = {way_0, way_1, way_2};

/* Up and down at random, so that each walk shares all but a few frames with the last. */
static NOINLINE void wander(struct piece *piece, int depth, unsigned hash) {
    while (piece->left > 0) {
        unsigned random = next(piece);
        if (depth > 0 && random % 4 == 0)
            return;
        if (random & 4 && depth < DEEPEST) {
            ways[random / 8 % FUNCTIONS](piece, depth + 1, hash);
        } else {
            void **slot = &piece->slots[random / 64 % SLOTS];
            piece->left--;
            free(*slot);
            *slot = keep(malloc(1 + hash % 65521));
        }
    }
}

static NOINLINE void *work(void *seed) {
    struct piece piece;
    memset(&piece, 0, sizeof piece);
    piece.random = ((uint64_t)(intptr_t)seed + 1) * 0x9e3779b97f4a7c15u;
    piece.left = blocks;
    wander(&piece, 0, 2166136261u);
    for (int i = 0; i < SLOTS; i++)
        free(piece.slots[i]);
    return NULL;
}

static void child(int seed, int generations) {
    if (fork() == 0) {
        work((void *)(intptr_t)seed);
        if (generations > 1)
            child(seed + 1, generations - 1);
        while (wait(NULL) > 0)
            ;
        _exit(0);
    }
}

static void *forks(void *unused) {
    work((void *)20);
    if (fork() == 0) {
        pthread_t other;
        work((void *)21);
        pthread_create(&other, NULL, work, (void *)22);
        work((void *)23);
        pthread_join(other, NULL);
        _exit(0);
    }
    work((void *)24);
    wait(NULL);
    return unused;
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    int others = 0;
    blocks = atol(argv[1]);
    if (argc > 2 && strcmp(argv[2], "threads") == 0)
        for (; others < 4; others++)
            pthread_create(&threads[others], NULL, work, (void *)(intptr_t)(10 + others));
    if (argc > 2 && strcmp(argv[2], "thread-forks") == 0)
        pthread_create(&threads[others++], NULL, forks, NULL);
    work((void *)0);
    if (argc > 2 && strcmp(argv[2], "forks") == 0) {
        child(1, 2);
        work((void *)3);
        while (wait(NULL) > 0)
            ;
    }
    for (int i = 0; i < others; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
