/* Blocks that only a thread holds, each in another way, and ones that threads took with them. The sizes tell them apart. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static __thread void *volatile variable;
static pthread_key_t key;
static sem_t ready;
static char other_stack[64 << 10];

static NOINLINE void wipe(void) {
    volatile char room[32 << 10];
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = 0;
}

static void wait_for_ever(void) {
    sem_post(&ready);
    for (;;)
        pause();
}

static NOINLINE void set_variable(void) {
    variable = keep(malloc(1001)); /* HELD variable */
}

static NOINLINE void set_key(void) {
    pthread_setspecific(key, keep(malloc(1002))); /* HELD key */
}

static void *by_variable(void *argument) {
    set_variable();
    wipe();
    wait_for_ever();
    return argument;
}

static void *by_key(void *argument) {
    set_key();
    wipe();
    wait_for_ever();
    return argument;
}

static void stay(int signal) {
    (void)signal;
    wait_for_ever();
}

static void *below_signal(void *argument) {
    void *volatile block = keep(malloc(1003)); /* HELD below a signal */
    raise(SIGUSR1);
    return argument ? argument : block;
}

static void *below_other_stack(void *argument) {
    stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    void *volatile block = keep(malloc(1004)); /* HELD below another stack */
    sigaltstack(&stack, NULL);
    raise(SIGUSR2);
    return argument ? argument : block;
}

static void *takes_along(void *argument) {
    variable = keep(malloc(2001)); /* LOST with a thread */
    void *volatile block = keep(malloc(2002)); /* LOST with a stack */
    wipe();
    return argument ? argument : block;
}

int main(void) {
    struct sigaction here = {.sa_handler = stay}, there = {.sa_handler = stay, .sa_flags = SA_ONSTACK};
    pthread_t thread;
    pthread_key_create(&key, NULL);
    sem_init(&ready, 0, 0);
    sigaction(SIGUSR1, &here, NULL);
    sigaction(SIGUSR2, &there, NULL);
    void *(*all[])(void *) = {by_variable, by_key, below_signal, below_other_stack};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        pthread_create(&thread, NULL, all[i], NULL);
        sem_wait(&ready);
    }
    pthread_create(&thread, NULL, takes_along, NULL);
    pthread_join(thread, NULL);
    wipe();
    printf("done\n");
    fflush(stdout);
    return 0;
}
