/*
 * Does with blocks what it mustn't, or asks for what was done to them. The first argument says what; what a test compares
 * goes to standard output.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) static unsigned char *allocate_here(size_t size) {
    unsigned char *block = malloc(size);
    __asm__ volatile("" : "+r"(block));
    return block;
}

__attribute__((noinline)) static void free_here(void *block) {
    __asm__ volatile("" : "+r"(block));
    free(block);
    __asm__ volatile("");
}

/* Writes where the compiler doesn't see that it mustn't. */
static void put(unsigned char *block, long at, unsigned char byte) {
    *(volatile unsigned char *)((uintptr_t)block + (uintptr_t)at) = byte;
}

static int all(const unsigned char *block, size_t from, size_t to, unsigned char byte) {
    for (; from < to; from++)
        if (((const volatile unsigned char *)block)[from] != byte)
            return 0;
    return 1;
}

static void *in_thread(void *unused) {
    (void)unused;
    free_here(allocate_here(70));
    printf("%d\n", gettid());
    return 0;
}

static void *volatile known;
static volatile int holds, over;

/* Two chains of two blocks, and a circle of two, to which nothing leads when this has returned. */
__attribute__((noinline)) static void lose(void) {
    for (volatile int turn = 0; turn < 2; turn++) {
        void **chain = (void **)allocate_here(8002);
        chain[7] = allocate_here(8003);
    }
    void **one = (void **)allocate_here(8004);
    void **other = (void **)allocate_here(8005);
    one[0] = other;
    other[1] = one;
}

/* Writes over what others left on the stack. */
__attribute__((noinline)) static void scrub(void) {
    volatile char space[8192];
    for (size_t at = 0; at < sizeof space; at++)
        space[at] = 0;
}

static void *hold(void *unused) {
    /* An address in the middle of the block is all that there is. */
    unsigned char *volatile middle = allocate_here(8006) + 4000;
    (void)unused;
    scrub();
    holds = 1;
    while (!over)
        usleep(1000);
    free_here(middle - 4000);
    return 0;
}

/* As programs of GNU's do at their exit. */
static void close_errors(void) { fclose(stderr); }

/* How many descriptors there are. */
static int descriptors(void) {
    int count = 0;
    for (int at = 0; at < 2048; at++)
        count += fcntl(at, F_GETFD) != -1;
    return count;
}

/* Sends a signal to this process; it has come when this returns. */
static void ask(int down) { kill(getpid(), SIGRTMAX - down); }

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    size_t size = argc > 2 ? strtoul(argv[2], 0, 10) : 100;
    setvbuf(stdout, 0, _IONBF, 0);
    unsigned char *block = allocate_here(size);
    printf("%p\n", (void *)block);
    if (!strcmp(what, "rear")) {
        put(block, (long)size, 0x12);
        put(block, (long)size + 31, 0);
        free_here(block);
    } else if (!strcmp(what, "front")) {
        put(block, -32, 7);
        put(block, -1, 0);
        free_here(block);
    } else if (!strcmp(what, "shrunk")) {
        block = realloc(block, size / 2);
        put(block, (long)size / 2, 0x12);
        block = realloc(block, 4 * size);
        memset(block, 1, 4 * size);
        free_here(block);
    } else if (!strcmp(what, "aligned")) {
        for (size_t alignment = 8; alignment <= 8192; alignment *= 2) {
            void *aligned = 0;
            if (posix_memalign(&aligned, alignment, size) || (uintptr_t)aligned % alignment)
                return 1;
            memset(aligned, 1, size);
            free(aligned);
            aligned = memalign(alignment, size);
            if ((uintptr_t)aligned % alignment)
                return 2;
            aligned = realloc(aligned, 2 * size);
            memset(aligned, 1, 2 * size);
            free(aligned);
        }
        volatile size_t huge = SIZE_MAX;
        void *none = &none;
        if (posix_memalign(&none, 24, 1) != EINVAL || posix_memalign(&none, sizeof none / 2, 1) != EINVAL || none != &none)
            return 3;
        errno = 0;
        if (malloc(huge - 8) || errno != ENOMEM)
            return 4;
        errno = 0;
        if (calloc(huge / 2, 3) || errno != ENOMEM)
            return 5;
        if (realloc(block, huge - 8))
            return 6;
        memset(block, 1, size);
        free(block);
    } else if (!strcmp(what, "sound")) {
        memset(block, 1, size);
        unsigned char *zero = calloc(size, 3);
        if (!all(zero, 0, 3 * size, 0))
            return 1;
        memset(zero, 2, 3 * size);
        zero = realloc(zero, 5 * size);
        if (!all(zero, 0, 3 * size, 2))
            return 2;
        free(zero);
        free(block);
        free(0);
    } else if (!strcmp(what, "filled")) {
        size_t usable = malloc_usable_size(block);
        printf("%d %d\n", all(block, 0, usable, 0xeb), all(block, 0, 5, 0xeb) && !all(block, 0, 6, 0xeb));
        unsigned char *zero = calloc(1, size);
        printf("%d\n", all(zero, 0, size, 0));
        memset(block, 1, usable);
        block = realloc(block, 5000);
        printf("%d %d\n", all(block, 0, size, 1), all(block, usable, malloc_usable_size(block), 0xeb));
        unsigned char *aligned = memalign(64, size);
        printf("%d\n", all(aligned, 0, size, 0xeb));
    } else if (!strcmp(what, "freed")) {
        memset(block, 1, size);
        unsigned char *volatile kept = block;
        free_here(block);
        /* The allocator keeps two words of its own in a block that is free. */
        printf("%d %d\n", all(kept, 16, size, 0xef), all(kept, 16, 20, 0xef) && all(kept, 20, size, 1));
    } else if (!strcmp(what, "expanded")) {
        unsigned char *bare = malloc(24);
        printf("%zu\n", malloc_usable_size(bare));
    } else if (!strcmp(what, "after")) {
        free_here(block);
        put(block, 20, 0xaf);
        put(block, 99, 0x12);
        for (int at = 0; at < 3; at++)
            free(allocate_here(50));
        puts("four were freed");
    } else if (!strcmp(what, "twice")) {
        free_here(block);
        free_here(block);
        block = realloc(block, 10);
        printf("%p\n", (void *)block);
    } else if (!strcmp(what, "unknown")) {
        free_here(block + 16);
        printf("%zu\n", malloc_usable_size(block + 32));
        printf("%p\n", realloc(block + 48, 10));
        free_here(block);
    } else if (!strcmp(what, "lost")) {
        for (int at = 0; at < 3; at++)
            allocate_here(10000 + (size_t)at);
        free_here(block);
    } else if (!strcmp(what, "closing")) {
        allocate_here(10000);
        free_here(block);
        atexit(close_errors);
        int before = descriptors();
        pid_t child = fork();
        if (child == 0) {
            printf("%d\n", descriptors() - before);
            exit(0);
        }
        waitpid(child, 0, 0);
    } else if (!strcmp(what, "toggled")) {
        allocate_here(7001);
        ask(19);
        allocate_here(7002);
        ask(19);
        allocate_here(7003);
        ask(17);
        /* No dump until the next call. */
        printf("%d\n", access(argv[3], F_OK));
        free_here(block);
        printf("%d\n", access(argv[3], F_OK));
    } else if (!strcmp(what, "recorded")) {
        block = realloc(block, 200);
        printf("%p\n", (void *)block);
        free_here(block);
        printf("%p\n", block = calloc(3, 5));
        free_here(block);
        printf("%p\n", block = memalign(64, 40));
        free_here(block);
        printf("%p\n", block = valloc(41));
        free_here(block);
        printf("%p\n", block = pvalloc(42));
        free_here(block);
        pthread_t thread;
        pthread_create(&thread, 0, in_thread, 0);
        pthread_join(thread, 0);
        ask(18);
        printf("%d\n", access(argv[3], F_OK));
        free_here(allocate_here(77));
    } else if (!strcmp(what, "unreachable")) {
        pthread_t thread;
        pthread_create(&thread, 0, hold, 0);
        known = allocate_here(8001);
        *(void **)known = allocate_here(8007);
        lose();
        scrub();
        while (!holds)
            usleep(1000);
        ask(16);
        free_here(block);
        over = 1;
        pthread_join(thread, 0);
        printf("%d\n", waitpid(-1, 0, 0));
    } else if (!strcmp(what, "leave")) {
        _exit(0);
    }
    return 0;
}
