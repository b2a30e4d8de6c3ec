/* Leaves malloc from the handler of a signal, after each of its first instructions once, and then has another thread give back what this one
 * allocates. x86-64: steps by the trap flag.
 *
 *     jump_out [context]      by siglongjmp, or by setcontext */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>

enum { STEPS = 8, BLOCKS = 20000, BEFORE = 500, SIZE = 1000, TRAP = 0x100 };

static sigjmp_buf place;
static ucontext_t context;
static volatile int stepping, left, by_context, came_back;
static void *blocks[BLOCKS], *before[BEFORE];
static sem_t filled, emptied;

static void step(int signal, siginfo_t *info, void *at) {
    (void)signal, (void)info;
    ucontext_t *stepped = at;
    if (!stepping || --left == 0)
        stepped->uc_mcontext.gregs[REG_EFL] &= ~TRAP;
    if (!stepping || left != 0)
        return;
    stepping = 0;
    came_back = 1;
    if (by_context)
        setcontext(&context);
    siglongjmp(place, 1);
}

static void *give_back(void *unused) {
    for (int round = 0; round < STEPS; round++) {
        sem_wait(&filled);
        for (int i = 0; i < BLOCKS; i++)
            free(blocks[i]);
        sem_post(&emptied);
    }
    return unused;
}

int main(int argc, char **argv) {
    (void)argv;
    by_context = argc > 1;
    struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO | SA_NODEFER};
    pthread_t thread;
    if (sigaction(SIGTRAP, &action, NULL) || sem_init(&filled, 0, 0) || sem_init(&emptied, 0, 0) ||
        pthread_create(&thread, NULL, give_back, NULL))
        abort();
    for (int round = 0; round < STEPS; round++) {
        for (int i = 0; i < BEFORE; i++)
            before[i] = keep(malloc(SIZE));
        left = round + 3;
        came_back = 0;
        if (by_context)
            getcontext(&context);
        if (!came_back && (by_context || !sigsetjmp(place, 1))) {
            stepping = 1;
            __asm__ volatile("pushf; orq %0, (%%rsp); popf" ::"i"(TRAP) : "memory", "cc");
            keep(malloc(SIZE));
            abort();
        }
        for (int i = 0; i < BEFORE; i++)
            free(before[i]);
        for (int i = 0; i < BLOCKS; i++)
            blocks[i] = keep(malloc(SIZE));
        sem_post(&filled);
        sem_wait(&emptied);
    }
    return pthread_join(thread, NULL);
}
