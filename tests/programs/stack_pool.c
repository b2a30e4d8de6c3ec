// Threads whose stacks lie in one large mapping that is all in use, as runtimes with stacks of their own have them: nothing there
// says where a stack ends. They work until the input ends.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 8 };
static const size_t STACK = 24 << 20;
static volatile int done;

static void *work(void *unused) {
    while (!done) {
        struct timespec nap = {0, 100000};
        free(malloc(100));
        nanosleep(&nap, NULL);
    }
    return unused;
}

int main(void) {
    char *pool = mmap(NULL, THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pool == MAP_FAILED)
        abort();
    memset(pool, 1, THREADS * STACK);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        if (pthread_attr_setstack(&attributes, pool + i * STACK, STACK) ||
            pthread_create(&threads[i], &attributes, work, NULL))
            abort();
    }
    puts("ready");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    poll(&input, 1, -1);
    done = 1;
    for (int i = 0; i < THREADS; ++i)
        pthread_join(threads[i], NULL);
    puts("well");
    return 0;
}
