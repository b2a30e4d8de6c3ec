/* Blocks that are lost, or held in every way that there is, at lines marked LOST or HELD with a name. argv[1] says which
 * way; without it all of them come, one after the other, in one process.
 *
 * Each way runs in a thread that has ended, or deep in a stack that is wiped, so that no stale pointer holds what is lost. */
#define _GNU_SOURCE
#include "keep.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct node {
    struct node *next;
    char text[40];
};

void *global;
static void *volatile table[64];
static __thread void *volatile local;
static struct node *volatile list;
static void *volatile *volatile mapped;
static volatile uintptr_t tagged;
static char *volatile inside;
static pthread_barrier_t barrier;

static NOINLINE void lose(void) {
    keep(malloc(100)); /* LOST alone */
}

static NOINLINE struct node *chain(int length) {
    struct node *head = NULL;
    for (int i = 0; i < length; i++) {
        struct node *node = malloc(sizeof *node); /* LOST chain */
        node->next = head;
        head = node;
    }
    return keep(head);
}

static NOINLINE void lose_circle(void) {
    struct node *a = malloc(sizeof *a); /* LOST circle a */
    struct node *b = malloc(sizeof *b); /* LOST circle b */
    a->next = keep(b);
    b->next = keep(a);
}

static NOINLINE void lose_tree(void) {
    void **root = malloc(4 * sizeof *root); /* LOST root */
    for (int i = 0; i < 4; i++)
        root[i] = keep(malloc(1000)); /* LOST leaf */
    keep(root);
}

static NOINLINE void hold(void) {
    global = keep(malloc(11)); /* HELD global */
    table[40] = keep(malloc(12)); /* HELD table */
    for (int i = 0; i < 20; i++) {
        struct node *node = malloc(sizeof *node); /* HELD list */
        node->next = list;
        list = node;
    }
    mapped = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mapped[5000] = keep(malloc(13)); /* HELD mapped */
    inside = keep(malloc(1400));     /* HELD inside */
    inside += 700;
    tagged = (uintptr_t)keep(malloc(15)) ^ (uintptr_t)0xa5 << 8 * (sizeof tagged - 1); /* HELD tagged */
}

static NOINLINE void hold_local(void) {
    local = keep(malloc(16)); /* HELD local */
}

/* Wipes the stack below. */
static NOINLINE void wipe(void) {
    volatile char room[64 << 10];
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = 0;
}

static void *losing(void *argument) {
    lose();
    keep(chain(50));
    lose_circle();
    lose_tree();
    hold();
    wipe();
    return argument;
}

static void *waiting(void *argument) {
    hold_local();
    void *block = keep(malloc(17)); /* HELD stack */
    void *volatile on_stack = block;
    wipe();
    pthread_barrier_wait(&barrier);
    for (;;)
        pause();
    return argument ? argument : on_stack;
}

static void *in_register(void *argument) {
    void *block = keep(malloc(18)); /* HELD register */
    wipe();
    pthread_barrier_wait(&barrier);
    /* Nothing else has it: what calls left below the stack pointer is wiped, and the loop makes none. */
#ifdef __aarch64__
    __asm__ volatile("mov x21, %0\n\t"
                     "sub x9, sp, #1024\n"
                     "1: str xzr, [x9], #8\n\t"
                     "cmp sp, x9\n\t"
                     "b.ne 1b\n\t"
                     "mov x19, #0\n\t"
                     "mov x20, #0\n"
                     "2: yield\n\t"
                     "b 2b"
                     :
                     : "r"(block)
                     : "x9", "x19", "x20", "x21", "cc", "memory");
#elif defined(__arm__)
    register void *held __asm__("r8") = block;
    __asm__ volatile("sub r2, sp, #1024\n\t"
                     "mov r3, #0\n"
                     "1: str r3, [r2], #4\n\t"
                     "cmp sp, r2\n\t"
                     "bne 1b\n\t"
                     "mov r0, #0\n\t"
                     "mov r1, #0\n\t"
                     "mov r4, #0\n\t"
                     "mov r5, #0\n\t"
                     "mov r6, #0\n"
                     "2: nop\n\t"
                     "b 2b"
                     : "+r"(held)
                     :
                     : "r0", "r1", "r2", "r3", "r4", "r5", "r6", "cc", "memory");
#else
    __asm__ volatile("mov %0, %%r12\n\t"
                     "lea -1024(%%rsp), %%rdi\n\t"
                     "mov $128, %%ecx\n\t"
                     "xor %%eax, %%eax\n\t"
                     "rep stosq\n\t"
                     "xor %%ebx, %%ebx\n\t"
                     "xor %%ebp, %%ebp\n"
                     "1: pause\n\t"
                     "jmp 1b"
                     :
                     : "r"(block)
                     : "r12", "rdi", "rcx", "rax", "rbx", "memory");
#endif
    return argument;
}

int main(int argc, char **argv) {
    pthread_t threads[3];
    pthread_attr_t attributes;
    const char *end = argc > 1 ? argv[1] : "return";
    pthread_create(&threads[0], NULL, losing, NULL);
    pthread_join(threads[0], NULL);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_barrier_init(&barrier, NULL, 3);
    pthread_create(&threads[1], &attributes, waiting, NULL);
    pthread_create(&threads[2], &attributes, in_register, NULL);
    memset(threads, 0, sizeof threads);
    pthread_barrier_wait(&barrier);
    /* The other has gone on to its register by then. */
    usleep(50000);
    hold_local();
    wipe();
    printf("done\n");
    fflush(stdout);
    /* Looked at meanwhile. */
    if (!strcmp(end, "wait"))
        while (getchar() != EOF)
            ;
    if (!strcmp(end, "exit"))
        exit(3);
    if (!strcmp(end, "quick"))
        quick_exit(4);
    if (!strcmp(end, "_exit"))
        _exit(5);
    if (!strcmp(end, "abort"))
        abort();
    return 7;
}
