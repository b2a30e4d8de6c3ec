/* Blocks that are held from stacks of the program's own making, and from memory that became read-only. It ends on a coroutine's
   stack, while others wait on theirs in the same mapping. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define EACH 3
#define STACK (128 << 10)
#define PAGE 4096

static __thread void *volatile variable;
static pthread_barrier_t all_wait;
static ucontext_t coroutines[EACH + 1], home;
static _Alignas(PAGE) void *volatile writable[PAGE / sizeof(void *)];
static _Alignas(PAGE) void *volatile settled[PAGE / sizeof(void *)];
static _Alignas(PAGE) void *volatile initialized[PAGE / sizeof(void *)] = {(void *)1};

static NOINLINE void wipe(void) {
    volatile char room[16 << 10];
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = 0;
}

static NOINLINE void lose(void) {
    keep(malloc(2001)); /* LOST by a thread */
}

/* Apart, since A32 code makes one call of two that differ in their arguments only. */
static NOINLINE void *hold_in_pool(void) {
    return keep(malloc(1001)); /* HELD in a pool of stacks */
}

static NOINLINE void *hold_without_guard(void) {
    return keep(malloc(1002)); /* HELD without guard pages */
}

static void *wait_with_blocks(void *in_pool) {
    lose();
    variable = keep(malloc(1003)); /* HELD variable */
    void *volatile block = in_pool ? hold_in_pool() : hold_without_guard();
    wipe();
    pthread_barrier_wait(&all_wait);
    for (;;)
        pause();
    return block;
}

/* On a stack of its own making, which lies above that of its thread in one mapping. */
static void above(void) {
    void *volatile block = keep(malloc(1008)); /* HELD above the stack of its thread */
    wipe();
    pthread_barrier_wait(&all_wait);
    for (;;)
        pause();
    free(block);
}

static void *climb(void *stack) {
    ucontext_t here, there;
    getcontext(&there);
    there.uc_stack = (stack_t){.ss_sp = stack, .ss_size = STACK};
    there.uc_link = &here;
    makecontext(&there, above, 0);
    swapcontext(&here, &there);
    return NULL;
}

static char *mapping(size_t size) {
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void start(char *stack, void *(*function)(void *), void *argument) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (stack)
        pthread_attr_setstack(&attributes, stack, STACK);
    else {
        pthread_attr_setstacksize(&attributes, STACK);
        pthread_attr_setguardsize(&attributes, 0);
    }
    pthread_t thread;
    if (pthread_create(&thread, &attributes, function, argument))
        abort();
}

static NOINLINE void settle(void) {
    void *volatile *mapped = (void *volatile *)mapping(PAGE);
    mapped[7] = keep(malloc(1004));      /* HELD in a read-only mapping */
    settled[7] = keep(malloc(1005));     /* HELD by a read-only variable */
    initialized[7] = keep(malloc(1006)); /* HELD by an initialized read-only variable */
    if (mprotect((void *)mapped, PAGE, PROT_READ) || mprotect((void *)settled, PAGE, PROT_READ) ||
        mprotect((void *)initialized, PAGE, PROT_READ))
        abort();
}

static void coroutine(int number) {
    void *volatile block = keep(malloc(1007)); /* HELD by a coroutine */
    if (number == EACH - 1)
        exit(0);
    swapcontext(&coroutines[number], &home);
    free(block);
}

int main(void) {
    writable[0] = (void *)1;
    pthread_barrier_init(&all_wait, NULL, 2 * EACH + 2);
    char *pool = mapping(EACH * STACK), *pool_of_coroutines = mapping((EACH + 1) * STACK);
    for (int i = 0; i < EACH; i++) {
        start(pool + i * STACK, wait_with_blocks, pool);
        start(NULL, wait_with_blocks, NULL);
    }
    char *both = mapping(2 * STACK);
    start(both, climb, both + STACK);
    pthread_barrier_wait(&all_wait);
    settle();
    for (int i = 0; i <= EACH; i++) {
        getcontext(&coroutines[i]);
        coroutines[i].uc_stack = (stack_t){.ss_sp = pool_of_coroutines + i * STACK, .ss_size = STACK};
        coroutines[i].uc_link = &home;
        makecontext(&coroutines[i], (void (*)(void))coroutine, 1, i);
    }
    printf("done\n");
    fflush(stdout);
    /* The uppermost first, so that one waits above the one that ends and two below. */
    for (int i = EACH; i >= 0; i--)
        if (i != EACH - 1)
            swapcontext(&home, &coroutines[i]);
    swapcontext(&home, &coroutines[EACH - 1]);
    return 1;
}
