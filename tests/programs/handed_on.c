/* Threads hand on one large block under a lock: there is never more than one. Others, and these in between, allocate small ones from the
 * same arena all the time, and a handler may hold them up wherever they are. argv: how many hand on, how many others, for how many milliseconds,
 * and how long the handler sleeps, in microseconds; 0 for none. */
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 64 << 20, MORE = 4 << 20, SMALL = 40, BLOCKS = 64, MOST = 16 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int over;
static long held_up;

static void hold_up(int signal) {
    (void)signal;
    struct timespec time = {0, held_up * 1000};
    nanosleep(&time, NULL);
}

static void *use(void *block) {
    *(volatile char *)block = 1;
    return block;
}

static void *hand_on(void *number) {
    size_t large = LARGE + (size_t)number * MORE;
    void *blocks[BLOCKS] = {0};
    for (unsigned turn = 0; !over; turn++) {
        for (unsigned i = 0; i < 8; i++) {
            unsigned at = (turn * 8 + i) * 7919 % BLOCKS;
            free(blocks[at]);
            blocks[at] = use(malloc(SMALL));
        }
        pthread_mutex_lock(&lock);
        void *block = use(malloc(large));
        free(blocks[0]);
        blocks[0] = use(malloc(SMALL));
        free(block);
        pthread_mutex_unlock(&lock);
        usleep(20);
    }
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    return NULL;
}

static void *stir(void *nothing) {
    void *blocks[BLOCKS];
    while (!over) {
        for (int i = 0; i < BLOCKS; i++)
            blocks[i] = use(malloc(SMALL));
        for (int i = 0; i < BLOCKS; i++)
            free(blocks[i]);
    }
    return nothing;
}

int main(int count, char **arguments) {
    if (count != 5)
        return 2;
    long handing = atol(arguments[1]), others = atol(arguments[2]), milliseconds = atol(arguments[3]);
    held_up = atol(arguments[4]);
    if (handing + others > MOST)
        return 2;
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    signal(SIGUSR1, hold_up);
    pthread_t threads[MOST];
    for (long i = 0; i < handing + others; i++)
        pthread_create(&threads[i], NULL, i < handing ? hand_on : stir, (void *)i);
    for (long i = 0; i < milliseconds / 5; i++) {
        usleep(5000);
        if (held_up)
            pthread_kill(threads[handing + i % others], SIGUSR1);
    }
    over = 1;
    for (long i = 0; i < handing + others; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
