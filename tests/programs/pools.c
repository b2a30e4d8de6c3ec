/* Reports pools of its own; all numbers are known. With an argument, one of the hard ways alone. */
#include "grapnel_heap.h"
#include "keep.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A pool that divides one block of malloc's, and never looks back. */
struct pool {
    char *chunk;
    size_t used, size;
    grapnel_heap heap;
};

static void pool_open(struct pool *pool, const char *name, size_t size) {
    pool->chunk = keep(malloc(size));
    pool->used = 0;
    pool->size = size;
    pool->heap = grapnel_heap_create(name);
}

static NOINLINE void *pool_alloc(struct pool *pool, size_t size) {
    char *block = pool->chunk + pool->used;
    pool->used += (size + 15) & ~(size_t)15;
    if (pool->used > pool->size)
        abort();
    grapnel_heap_alloc(pool->heap, block, size); /* POOL alloc */
    return keep(block);
}

static void pool_close(struct pool *pool) {
    grapnel_heap_destroy(pool->heap);
    free(pool->chunk);
}

/* 100 nodes of 40 bytes, of which 30 are freed, 10 exchanged for 60 bytes, one where it was; what is left stays. */
static void nodes(void) {
    static struct pool pool;
    pool_open(&pool, "nodes", 1 << 16);
    char *all[100];
    for (int i = 0; i < 100; i++)
        all[i] = pool_alloc(&pool, 40);
    for (int i = 0; i < 30; i++)
        grapnel_heap_free(pool.heap, all[i]);
    for (int i = 30; i < 39; i++) {
        char *block = pool.chunk + pool.used;
        pool.used += 64;
        grapnel_heap_realloc(pool.heap, all[i], block, 60); /* POOL realloc */
    }
    grapnel_heap_realloc(pool.heap, all[39], all[39], 60); /* POOL in place */
    /* What is nothing. */
    grapnel_heap_free(pool.heap, NULL);
    grapnel_heap_alloc(pool.heap, NULL, 7);
    grapnel_heap_realloc(pool.heap, NULL, NULL, 7);
    grapnel_heap_alloc(0, all[0], 7);
    grapnel_heap_alloc(12345, all[0], 7);
    grapnel_heap_free(~(grapnel_heap)0, all[50]);
    grapnel_heap_destroy(0);
}

/* 1,000 pools of one name, one after another at one address, each with 5 blocks of 8 bytes; then one that is emptied
 * 10 times, with 3 blocks of 16 bytes each time. */
static void requests(void) {
    for (int i = 0; i < 1000; i++) {
        struct pool pool;
        pool_open(&pool, "request", 1024);
        for (int j = 0; j < 5; j++)
            pool_alloc(&pool, 8);
        pool_close(&pool);
    }
    struct pool pool;
    pool_open(&pool, "frame", 1024);
    for (int i = 0; i < 10; i++) {
        for (int j = 0; j < 3; j++)
            pool_alloc(&pool, 16);
        grapnel_heap_reset(pool.heap);
        pool.used = 0;
    }
    pool_close(&pool);
    errno = 77;
    grapnel_heap heap = grapnel_heap_create(NULL);
    grapnel_heap_alloc(heap, &pool, 1);
    grapnel_heap_destroy(heap);
    if (errno != 77)
        printf("wrong: errno %d\n", errno);
}

/* A pool within a pool: both have their first block at the same address, which is also that of malloc's. */
static void nested(void) {
    static struct pool outer, inner;
    pool_open(&outer, "outer", 4096);
    inner.chunk = pool_alloc(&outer, 1024);
    inner.size = 1024;
    inner.heap = grapnel_heap_create("inner");
    pool_alloc(&inner, 100);
}

static struct pool shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static char *free_list[64];
static int listed;

/* Blocks of one pool go through a list from thread to thread, at the same addresses: never two at one. */
static void *worker(void *unused) {
    for (int i = 0; i < 20000; i++) {
        pthread_mutex_lock(&lock);
        char *block = listed ? free_list[--listed] : NULL;
        if (block)
            grapnel_heap_alloc(shared.heap, block, 32); /* POOL again */
        pthread_mutex_unlock(&lock);
        if (!block)
            block = NULL;
        else {
            pthread_mutex_lock(&lock);
            grapnel_heap_free(shared.heap, block);
            free_list[listed++] = block;
            pthread_mutex_unlock(&lock);
        }
    }
    return unused;
}

static void *resetter(void *number) {
    for (int i = 0; i < 300; i++) {
        if (number == NULL) {
            grapnel_heap_reset(shared.heap);
            shared.used = 0;
        }
        pthread_barrier_wait(&barrier);
        pthread_mutex_lock(&lock);
        pool_alloc(&shared, 32);
        pthread_mutex_unlock(&lock);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[4];
    pool_open(&shared, "shared", 1 << 16);
    for (listed = 0; listed < 4; listed++)
        free_list[listed] = shared.chunk + 4096 + 32 * listed;
    for (int i = 0; i < 4; i++)
        pthread_create(&all[i], NULL, worker, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
    pthread_barrier_init(&barrier, NULL, 4);
    for (long i = 0; i < 4; i++)
        pthread_create(&all[i], NULL, resetter, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
}

static void children(void) {
    struct pool pool;
    pool_open(&pool, "inherited", 1024);
    char *before = pool_alloc(&pool, 10);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        grapnel_heap_free(pool.heap, before);
        for (int i = 0; i < 7; i++)
            pool_alloc(&pool, 20);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    pool_alloc(&pool, 30);
}

static struct pool of_handler;

static void handler(int number) {
    (void)number;
    pool_alloc(&of_handler, 5);
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "";
    if (strcmp(which, "threads") == 0) {
        threads();
    } else if (strcmp(which, "children") == 0) {
        children();
    } else {
        nodes();
        requests();
        nested();
        pool_open(&of_handler, "handler", 1024);
        signal(SIGUSR1, handler);
        for (int i = 0; i < 6; i++)
            raise(SIGUSR1);
        for (int i = 1; i < argc; i++) {
            void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
            void (*use)(void) = library ? (void (*)(void))dlsym(library, "use_pool") : NULL;
            if (use)
                use();
            else
                puts("no library");
        }
    }
    puts("done");
    return 0;
}
