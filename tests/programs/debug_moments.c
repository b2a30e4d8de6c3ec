/*
 * Moments in which malloc_debug must neither hang nor end the program. The first argument says which, the
 * second a directory to work in, with another named `child` for children. What a test compares goes to standard output.
 */
#define _GNU_SOURCE
#include "keep.h"
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, SLOTS = 64 };

static volatile int over;
static void *slots[SLOTS];

static unsigned next(unsigned *state) { return (*state = *state * 1664525 + 1013904223) >> 16; }

/* Exchanges blocks that any of the threads has made, none so small that the allocator takes no lock for it. */
static void *exchange(void *argument) {
    unsigned state = (unsigned)(uintptr_t)argument;
    while (!over) {
        void **slot = &slots[next(&state) % SLOTS];
        void *block = __atomic_exchange_n(slot, (void *)0, __ATOMIC_ACQ_REL);
        block = keep(realloc(block, 1100 + next(&state) % 8000));
        free(__atomic_exchange_n(slot, block, __ATOMIC_ACQ_REL));
    }
    return 0;
}

static int child_ends(void) {
    pid_t child = fork();
    if (child == 0) {
        if (chdir("child"))
            _exit(1);
        for (int at = 0; at < 20; at++)
            free(keep(realloc(malloc(2000), 4000)));
        _exit(42);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 42;
}

/* Holds the allocator's lock most of the time. */
static void *trim(void *unused) {
    while (!over)
        malloc_trim(0);
    return unused;
}

/* Asks for the file again and again in a thread that others wait for in the allocator, and forks. */
static void realloc_under_signals(void) {
    pthread_t threads[THREADS];
    int children = 0;
    mallopt(M_ARENA_MAX, 1);
    pthread_create(&threads[0], 0, trim, 0);
    for (size_t at = 1; at < THREADS; at++)
        pthread_create(&threads[at], 0, exchange, (void *)at);
    for (int turn = 0; turn < 200; turn++) {
        pthread_kill(threads[0], SIGRTMAX - 18);
        usleep(1000);
        if (turn % 8 == 0)
            children += child_ends();
    }
    over = 1;
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], 0);
    printf("%d\n", children);
}

/* Blocks that are unmapped when they go. */
static void *map_and_unmap(void *unused) {
    for (;;)
        free(keep(malloc(8000000)));
    return unused;
}

static void end_amid_frees(void) {
    mallopt(M_MMAP_THRESHOLD, 65536);
    for (int at = 0; at < THREADS; at++) {
        pthread_t thread;
        pthread_create(&thread, 0, map_and_unmap, 0);
    }
    usleep(300000);
    /* So that it is the others that run. */
    setpriority(PRIO_PROCESS, (id_t)gettid(), 10);
}

static void told(int signal) {
    sigset_t blocked;
    free(keep(malloc(3000)));
    free(keep(realloc(keep(malloc(100)), 3000)));
    pthread_sigmask(SIG_SETMASK, 0, &blocked);
    printf("%d %d\n", signal, sigismember(&blocked, SIGUSR1));
    _exit(7);
}

static sigjmp_buf outside;

static void jump(int signal) { siglongjmp(outside, signal); }

static void leave(int signal) {
    printf("%d\n", signal);
    _exit(7);
}

static void *reallocate(void *unused) {
    free(keep(realloc(keep(malloc(100)), 5000)));
    return unused;
}

/* glibc ends the program for this. */
static void reallocate_inside(void) {
    volatile char *block = keep(malloc(100));
    keep(realloc((void *)(uintptr_t)(block + 8), 5000));
}

/* Becomes this program again with a standard error that nobody reads. */
static int unheard(char *self) {
    int ends[2];
    if (pipe(ends) || dup2(ends[1], 2) != 2)
        return 1;
    close(ends[0]);
    close(ends[1]);
    execl("/proc/self/exe", self, "heard_by_nobody", (char *)0);
    return 2;
}

static void free_twice(void) {
    void *volatile block = malloc(100);
    free(block);
    free(block);
}

/* A list of blocks to which nothing leads when this has returned, the newest first. */
NOINLINE static void lose_list(int count) {
    void *volatile first = 0;
    for (int at = 0; at < count; at++) {
        void **node = malloc(16);
        node[0] = (void *)(uintptr_t)first;
        first = node;
    }
    first = 0;
}

/* Writes over what others left on the stack. */
NOINLINE static void scrub(void) {
    volatile char space[16384];
    for (size_t at = 0; at < sizeof space; at++)
        space[at] = 0;
}

static void *unasked(void *unused) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMAX - 16);
    pthread_sigmask(SIG_BLOCK, &set, 0);
    over = 1;
    while (over != 2)
        usleep(1000);
    pthread_sigmask(SIG_UNBLOCK, &set, 0);
    over = 3;
    while (over != 4)
        usleep(1000);
    return unused;
}

static void ask_for_look(void) {
    kill(getpid(), SIGRTMAX - 16);
    free(keep(malloc(10)));
}

static void look(int signal) {
    (void)signal;
    ask_for_look();
}

/* Stands still on an alternate stack, with a block that only this stack knows. */
static void hold_on_alternate(int signal) {
    void *volatile block = malloc(4321 + (size_t)(signal & 1));
    over = 1;
    while (over != 2)
        usleep(1000);
    free(block);
}

/* Has a handler on a stack at this place, which nobody but the kernel knows later. */
NOINLINE static void handle_on(void *stack, size_t size, int signal, void (*handler)(int)) {
    stack_t alternate = {.ss_sp = stack, .ss_size = size};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaltstack(&alternate, 0);
    sigaction(signal, &action, 0);
}

NOINLINE static void handle_on_block(void) { handle_on(malloc(65536), 65536, SIGUSR2, hold_on_alternate); }

static void *stand_on_alternate(void *unused) {
    handle_on_block();
    scrub();
    raise(SIGUSR2);
    return unused;
}

/* Memory whose upper half is this thread's alternate stack, and whose lower half holds a block. */
NOINLINE static void hold_below_alternate(void) {
    const size_t half = 1 << 19;
    void **area = mmap(0, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    area[0] = malloc(1234);
    handle_on((char *)area + half, half, SIGUSR1, look);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    setvbuf(stdout, 0, _IONBF, 0);
    if (argc > 2 && chdir(argv[2]))
        return 3;
    if (!strcmp(what, "realloc")) {
        realloc_under_signals();
    } else if (!strcmp(what, "end")) {
        end_amid_frees();
    } else if (!strcmp(what, "abort")) {
        signal(SIGABRT, told);
        volatile char *block = keep(malloc(100));
        block[100] = 1;
        keep(realloc((void *)(uintptr_t)block, 5000));
    } else if (!strcmp(what, "inside")) {
        signal(SIGABRT, told);
        reallocate_inside();
    } else if (!strcmp(what, "jump")) {
        pthread_t thread;
        signal(SIGABRT, jump);
        if (sigsetjmp(outside, 1) == 0)
            reallocate_inside();
        pthread_create(&thread, 0, reallocate, 0);
        pthread_join(thread, 0);
        reallocate(0);
    } else if (!strcmp(what, "fault")) {
        signal(SIGSEGV, leave);
        void *volatile nothing = (void *)0x10000;
        keep(realloc(nothing, 5000));
    } else if (!strcmp(what, "unheard")) {
        return unheard(argv[0]);
    } else if (!strcmp(what, "heard_by_nobody")) {
        free_twice();
    } else if (!strcmp(what, "limit")) {
        struct rlimit small = {1024, 1024};
        setrlimit(RLIMIT_FSIZE, &small);
        kill(getpid(), SIGRTMAX - 17);
        free(keep(malloc(10)));
    } else if (!strcmp(what, "list")) {
        lose_list(300000);
        scrub();
        /* Others use the registers. */
        printf("lost\n");
        ask_for_look();
    } else if (!strcmp(what, "asked")) {
        pthread_t thread;
        pthread_create(&thread, 0, unasked, 0);
        while (over != 1)
            usleep(1000);
        ask_for_look();
        ask_for_look();
        over = 2;
        while (over != 3)
            usleep(1000);
        ask_for_look();
        over = 4;
        pthread_join(thread, 0);
    } else if (!strcmp(what, "alternate")) {
        pthread_t thread;
        hold_below_alternate();
        pthread_create(&thread, 0, stand_on_alternate, 0);
        while (over != 1)
            usleep(1000);
        scrub();
        raise(SIGUSR1);
        over = 2;
        pthread_join(thread, 0);
    } else if (!strcmp(what, "pipe")) {
        free(keep(malloc(10)));
        kill(getpid(), SIGRTMAX - 18);
        free(keep(malloc(10)));
    } else if (!strcmp(what, "huge")) {
        int given = 0;
#if SIZE_MAX > UINT32_MAX
        /* An address to such a multiple is found, and lies more than 4 GiB into what was asked for in one of these. */
        const size_t half = (size_t)1 << 32;
        for (int turn = 0; turn < 2; turn++) {
            void *block = keep(aligned_alloc(2 * half, 100));
            given += !!block;
            free(block);
            mmap(0, half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        }
#else
        /* There is no such address. */
        given = 1;
#endif
        printf("%d\n", given);
    }
    puts("goes on");
    return 0;
}
