/* Memory that goes while a thread allocates whose stacks lead there: code without unwind tables uses the frame pointer's register as it likes, or the tables
 * say nothing of a stack that inline assembly has changed. x86-64.
 * "code": what seems to be a return address lies in code that another thread maps and unmaps. "frame": what seems to be a frame lies in such memory, above the
 * stack. "library PATH ONE OTHER": it lies between two functions of a library that another thread loads and unloads. "protected", "guarded": a stack above
 * the one that is in use is made unreadable, by mprotect or madvise. "neighbour": code made at run time runs on a stack of its own, and has its maker's frame pointer, which
 * leads to the next stack, from which it was started and which another thread gives back. */
#define _GNU_SOURCE
#include "keep.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __x86_64__

/* Allocates with a frame that returns to this word. */
void with_return(uintptr_t word);
/* Allocates so often with this frame pointer. */
void with_frame(uintptr_t frame, int times);
__asm__(".text\n"
        ".globl with_return\n.type with_return, @function\n"
        "with_return:\n push %rbp\n sub $64, %rsp\n lea 32(%rsp), %rbp\n mov %rdi, 8(%rbp)\n lea 200(%rsp), %rax\n mov %rax, (%rbp)\n"
        " mov $100, %edi\n call malloc@plt\n mov %rax, %rdi\n call free@plt\n add $64, %rsp\n pop %rbp\n ret\n"
        ".size with_return, . - with_return\n"
        ".globl with_frame\n.type with_frame, @function\n"
        "with_frame:\n push %rbp\n push %rbx\n sub $8, %rsp\n mov %rdi, %rbp\n mov %esi, %ebx\n"
        "1: mov $100, %edi\n call malloc@plt\n mov %rax, %rdi\n call free@plt\n dec %ebx\n jnz 1b\n"
        " add $8, %rsp\n pop %rbx\n pop %rbp\n ret\n"
        ".size with_frame, . - with_frame\n");

enum { ROOM = 1 << 20, CODE = 64 << 10 };

static volatile int is_over;
static char *place;

static void *maps_code(void *unused) {
    while (!is_over) {
        mmap(place, CODE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0);
        for (volatile int i = 0; i < 300; i++) {
        }
        munmap(place, CODE);
    }
    return unused;
}

static void *maps_frames(void *unused) {
    while (!is_over) {
        mmap(place, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        *(uintptr_t *)(place + 64) = (uintptr_t)place + 256;
        *(uintptr_t *)(place + 72) = (uintptr_t)&printf + 20;
        for (volatile int i = 0; i < 300; i++) {
        }
        munmap(place, 4096);
    }
    return unused;
}

static void *by_frame(void *unused) {
    for (int i = 0; i < 8; i++)
        with_frame((uintptr_t)place + 64, 10000);
    return unused;
}

static uintptr_t first, length;

static void *by_return(void *unused) {
    uint64_t random = 88172645463325252u;
    while (!is_over) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        with_return(first + random % length);
    }
    return unused;
}

static void code(void) {
    pthread_t thread;
    place = mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_create(&thread, NULL, maps_code, NULL);
    for (int i = 0; i < 100000; i++)
        with_return((uintptr_t)place + 100 + i % 60000);
    is_over = 1;
    pthread_join(thread, NULL);
}

static void frame(void) {
    pthread_t thread, worker;
    pthread_attr_t attributes;
    char *stack = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    place = stack + ROOM / 2;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, ROOM / 2);
    pthread_create(&thread, NULL, maps_frames, NULL);
    pthread_create(&worker, &attributes, by_frame, NULL);
    pthread_join(worker, NULL);
    is_over = 1;
    pthread_join(thread, NULL);
}

static void library(char **argv) {
    void *loaded = dlopen(argv[2], RTLD_NOW);
    if (!loaded) {
        puts(dlerror());
        exit(1);
    }
    uintptr_t one = (uintptr_t)dlsym(loaded, argv[3]), other = (uintptr_t)dlsym(loaded, argv[4]);
    first = one < other ? one : other;
    length = one < other ? other - one : one - other;
    dlclose(loaded);
    pthread_t thread;
    pthread_create(&thread, NULL, by_return, NULL);
    for (int i = 0; i < 500; i++) {
        loaded = dlopen(argv[2], RTLD_NOW);
        usleep(300);
        dlclose(loaded);
    }
    is_over = 1;
    pthread_join(thread, NULL);
}

enum { STACK = 64 << 10 };

/* on_stack(function, stack, frame): push rbp; push rbx; mov rbx, rsp; mov rsp, rsi; mov rbp, rdx; call inner; mov rsp, rbx; pop rbx; pop rbp; ret
   inner: push rbp; mov rbp, rsp; call rdi; pop rbp; ret */
static const uint8_t on_stack[] = {0x55, 0x53, 0x48, 0x89, 0xe3, 0x48, 0x89, 0xf4, 0x48, 0x89, 0xd5, 0xe8, 0x06, 0x00, 0x00,
                                   0x00, 0x48, 0x89, 0xdc, 0x5b, 0x5d, 0xc3, 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};

extern void _start(void);

NOINLINE static void twenty_pairs(void) {
    for (size_t i = 0; i < 20; i++)
        free(keep(malloc(40 + i)));
}

static void *runs_on_its_own(void *code) {
    typedef void (*made)(void (*)(void), char *, char *);
    while (!is_over)
        ((made)code)(twenty_pairs, place - 256, place + 64);
    return NULL;
}

static void neighbour(void) {
    pthread_t thread;
    char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, on_stack, sizeof on_stack);
    mprotect(code, 4096, PROT_READ | PROT_EXEC);
    char *lower = mmap(NULL, 4 * STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(lower, STACK, PROT_READ | PROT_WRITE);
    place = lower + STACK;
    pthread_create(&thread, NULL, runs_on_its_own, code);
    for (int round = 0; round < 3000; round++) {
        mmap(place, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        *(uintptr_t *)(place + 72) = (uintptr_t)_start + 32;
        for (volatile int i = 0; i < 20000; i++) {
        }
        munmap(place, STACK);
    }
    is_over = 1;
    pthread_join(thread, NULL);
}

NOINLINE __attribute__((used)) void work(int n) {
    char much[500];
    keep(much);
    free(keep(malloc(100 + (size_t)n)));
    if (n)
        work(n - 1);
    keep(much);
}

/* What the tables say of this frame while work runs leads up the stack that it runs on. */
NOINLINE __attribute__((optimize("omit-frame-pointer"))) static void run_on(char *top, long n) {
    __asm__ volatile("mov %%rsp, %%r12\n mov %0, %%rsp\n call work\n mov %%r12, %%rsp"
                     : "+r"(top), "+D"(n)
                     :
                     : "r12", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
}

static void put_away(int by_advice) {
    char *stacks = mmap(NULL, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *lower = stacks + STACK, *upper = lower + STACK;
    for (int round = 0; round < 20; round++) {
        run_on(upper - 512, 40);
        run_on(lower - 16, 40);
    }
    if (by_advice)
        madvise(lower, STACK, 102 /* MADV_GUARD_INSTALL; before Linux 6.13 nothing happens */);
    else
        mprotect(lower, STACK, PROT_NONE);
    for (int round = 0; round < 20; round++)
        run_on(lower - 16, 40);
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "";
    if (strcmp(which, "code") == 0)
        code();
    else if (strcmp(which, "frame") == 0)
        frame();
    else if (strcmp(which, "neighbour") == 0)
        neighbour();
    else if (strcmp(which, "library") == 0)
        library(argv);
    else
        put_away(strcmp(which, "guarded") == 0);
    puts("done");
    return 0;
}

#else

int main(void) {
    puts("done");
    return 0;
}

#endif
