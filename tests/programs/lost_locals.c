/* Blocks that nothing but variables of threads holds: the first thread's, another's, and those of a library that is opened later
 * (argv[1], of lost_locals_library.c). A thread that has ended has none any more. */
#include "keep.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static __thread void *volatile local;
/* Far from the other. */
static __thread volatile char between[3000];
static __thread void *volatile last;
static void (*give)(void *);
static pthread_barrier_t barrier;

static NOINLINE void hold_first(void) {
    local = keep(malloc(1001)); /* HELD by the first thread */
    between[0] = 1;
    last = keep(malloc(1002)); /* HELD by the first thread, further up */
    give(keep(malloc(1003)));  /* HELD by the first thread's in a library */
}

static NOINLINE void hold_second(void) {
    local = keep(malloc(1004)); /* HELD by the second thread */
    last = keep(malloc(1005));  /* HELD by the second thread, further up */
    give(keep(malloc(1006)));   /* HELD by the second thread's in a library */
}

static NOINLINE void lose(void) {
    local = keep(malloc(2001)); /* LOST by a thread */
}

/* Wipes the stack below. */
static NOINLINE void wipe(void) {
    volatile char room[64 << 10];
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = 0;
}

static void *waiting(void *argument) {
    hold_second();
    wipe();
    pthread_barrier_wait(&barrier);
    for (;;)
        pause();
    return argument;
}

static void *ending(void *argument) {
    lose();
    wipe();
    return argument;
}

int main(int argc, char **argv) {
    pthread_t thread;
    void *library = dlopen(argc > 1 ? argv[1] : "", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&give = dlsym(library, "give");
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, waiting, NULL);
    pthread_barrier_wait(&barrier);
    pthread_create(&thread, NULL, ending, NULL);
    pthread_join(thread, NULL);
    memset(&thread, 0, sizeof thread);
    hold_first();
    wipe();
    printf("done\n");
    return 0;
}
