/* Does as it is told by bytes on its input, and says what it did: blocks that it got, gave back and changed, of how many bytes,
   and what is live. Threads that wait from the start do a part of it, others begin and end meanwhile. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OLD = 2, NEW = 40, AT_A_TIME = 4, STEPS = 100 };

static unsigned long got, gave, changed, bytes, live, live_bytes;
static int begin[OLD][2], done[2];
static struct kept {
    struct kept *next;
    size_t size;
} *kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add(unsigned long *figure, unsigned long value) {
    __atomic_add_fetch(figure, value, __ATOMIC_RELAXED);
}

static NOINLINE void *make(unsigned number, size_t size) {
    void *block = NULL;
    switch (number % 4) {
    case 0:
        block = keep(calloc(1, size));
        break;
    case 1:
        if (posix_memalign(&block, 64, size) != 0)
            abort();
        break;
    default:
        block = keep(malloc(size));
    }
    if (!block)
        abort();
    memset(block, (int)number, size);
    add(&got, 1);
    add(&bytes, size);
    add(&live, 1);
    add(&live_bytes, size);
    return keep(block);
}

static NOINLINE void *change(void *block, size_t old, size_t size) {
    block = keep(realloc(block, size));
    if (!block)
        abort();
    add(&changed, 1);
    add(&bytes, size);
    add(&live_bytes, size - old);
    return keep(block);
}

static NOINLINE void drop(void *block, size_t size) {
    add(&gave, 1);
    add(&live, -1ul);
    add(&live_bytes, -size);
    free(block);
}

static NOINLINE void work(unsigned number) {
    for (unsigned i = 0; i < STEPS; i++) {
        size_t size = 24 + (number * 7 + i * 13) % 900 + (i == 50 ? 300000 : 0);
        void *block = make(i, size);
        if (i % 5 == 2) {
            block = change(block, size, size * 2);
            size *= 2;
        }
        if (i % 10) {
            drop(block, size);
            continue;
        }
        /* Somebody gives it back in the next bout. */
        struct kept *this = block;
        this->size = size;
        pthread_mutex_lock(&lock);
        this->next = kept;
        kept = this;
        pthread_mutex_unlock(&lock);
    }
    /* Pages of its own are no business of the heap's. */
    void *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || munmap(pages, 8192) != 0)
        abort();
}

static void *work_once(void *argument) {
    work((unsigned)(uintptr_t)argument);
    return NULL;
}

static void *work_when_told(void *argument) {
    unsigned number = (unsigned)(uintptr_t)argument;
    char byte;
    while (read(begin[number][0], &byte, 1) == 1) {
        work(number);
        if (write(done[1], &byte, 1) != 1)
            abort();
    }
    return NULL;
}

static NOINLINE void bout(void) {
    char byte = 'g';
    struct kept *old = kept;
    kept = NULL;
    while (old) {
        struct kept *next = old->next;
        drop(old, old->size);
        old = next;
    }
    for (int i = 0; i < OLD; i++)
        if (write(begin[i][1], &byte, 1) != 1)
            abort();
    for (unsigned at = 0; at < NEW; at += AT_A_TIME) {
        pthread_t threads[AT_A_TIME];
        for (unsigned i = 0; i < AT_A_TIME; i++)
            if (pthread_create(&threads[i], NULL, work_once, (void *)(uintptr_t)(at + i)) != 0)
                abort();
        for (int i = 0; i < AT_A_TIME; i++)
            pthread_join(threads[i], NULL);
    }
    work(99);
    for (int i = 0; i < OLD; i++)
        if (read(done[0], &byte, 1) != 1)
            abort();
}

static void say(void) {
    char line[200];
    int len = snprintf(line, sizeof line, "%lu %lu %lu %lu %lu %lu\n", got, gave, changed, bytes, live, live_bytes);
    if (write(1, line, (size_t)len) != len)
        abort();
}

int main(void) {
    char byte;
    if (pipe(done) != 0)
        return 1;
    for (unsigned i = 0; i < OLD; i++) {
        pthread_t thread;
        if (pipe(begin[i]) != 0 || pthread_create(&thread, NULL, work_when_told, (void *)(uintptr_t)i) != 0)
            return 1;
    }
    say();
    while (read(0, &byte, 1) == 1) {
        bout();
        say();
    }
    return 0;
}
