/* Asks for its own live blocks by Android's functions, and checks every field. The first argument says what to do. */
#include "grapnel_malloc_debug.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

struct info {
    uint8_t *data;
    size_t overall, record, total, frames;
};

static struct info ask(void) {
    struct info info;
    memset(&info, 0xa5, sizeof info);
    get_malloc_leak_info(&info.data, &info.overall, &info.record, &info.total, &info.frames);
    return info;
}

/* How many blocks of a size there are, and in how many records. */
static size_t count(const struct info *info, size_t size, size_t *records, const uintptr_t **pcs) {
    size_t found = 0;
    *records = 0;
    for (size_t at = 0; at < info->overall; at += info->record) {
        const size_t *words = (const size_t *)(info->data + at);
        if (words[0] == size) {
            found += words[1];
            ++*records;
            if (pcs)
                *pcs = (const uintptr_t *)(words + 2);
        }
    }
    return found;
}

__attribute__((noinline)) static void *one(size_t size) {
    void *block = malloc(size);
    __asm__ volatile("" : "+r"(block));
    return block;
}

__attribute__((noinline)) static void *other(size_t size) {
    void *block = calloc(1, size);
    __asm__ volatile("" : "+r"(block));
    return block;
}

__attribute__((noinline)) static void *deep(int depth, size_t size) {
    void *block = depth ? deep(depth - 1, size) : one(size);
    __asm__ volatile("" : "+r"(block));
    return block;
}

static volatile int over;

static void *load(void *unused) {
    (void)unused;
    void *blocks[64] = {0};
    unsigned state = (unsigned)(uintptr_t)&blocks | 1;
    while (!over) {
        state = state * 1664525 + 1013904223;
        unsigned at = state >> 26;
        if (blocks[at] && state & 0x1000) {
            blocks[at] = realloc(blocks[at], (state >> 8) % 900 + 1);
        } else {
            free(blocks[at]);
            blocks[at] = state & 0x2000 ? malloc((state >> 8) % 900 + 1) : 0;
        }
    }
    for (int at = 0; at < 64; at++)
        free(blocks[at]);
    return 0;
}

/* Sizes that nobody else asks for. */
#define ODD 7777
#define OTHER 8888
#define DEEP 9999

static void fields(size_t frames) {
    void *blocks[30];
    for (int at = 0; at < 10; at++) {
        /* Between equal records lie others of the same size. */
        blocks[3 * at] = one(ODD);
        blocks[3 * at + 1] = other(ODD);
        blocks[3 * at + 2] = one(OTHER);
    }
    struct info info = ask();
    CHECK(info.frames == frames);
    CHECK(info.record == sizeof(size_t) * 2 + sizeof(uintptr_t) * frames);
    CHECK(info.overall && info.overall % info.record == 0);
    size_t total = 0, before = (size_t)-1;
    for (size_t at = 0; at < info.overall; at += info.record) {
        const size_t *words = (const size_t *)(info.data + at);
        CHECK(words[0] && !(words[0] & GRAPNEL_MALLOC_IN_CHILD) && words[1]);
        CHECK(words[0] <= before);
        before = words[0];
        total += words[0] * words[1];
        /* What is missing is zero, and nothing comes after it. */
        for (size_t frame = 1; frame < frames; frame++)
            CHECK(words[2 + frame - 1] || !words[2 + frame]);
        /* No two records are of one kind. */
        for (size_t next = at + info.record; next < info.overall; next += info.record)
            CHECK(memcmp(words, info.data + next, sizeof(size_t)) ||
                  memcmp(words + 2, info.data + next + 2 * sizeof(size_t), frames * sizeof(uintptr_t)));
    }
    CHECK(total == info.total);
    size_t records;
    const uintptr_t *pcs = 0;
    CHECK(count(&info, ODD, &records, 0) == 20 && records == 2);
    CHECK(count(&info, OTHER, &records, &pcs) == 10 && records == 1);
    /* The leaf is the caller of malloc: no frame of the tool is there. */
    CHECK(pcs[0] > (uintptr_t)one && pcs[0] < (uintptr_t)one + 64);
    if (frames > 1)
        CHECK(pcs[1] > (uintptr_t)fields && pcs[1] < (uintptr_t)fields + 4096);
    uintptr_t own[300];
    memset(own, 0xa5, sizeof own);
    ssize_t len = malloc_backtrace(blocks[2], own, 300);
    CHECK(len > 0 && (size_t)len <= frames && !memcmp(own, pcs, (size_t)len * sizeof *own));
    CHECK((size_t)len == frames || !pcs[len]);
    CHECK(own[len] == (uintptr_t)0xa5a5a5a5a5a5a5a5);
    CHECK(malloc_backtrace(blocks[2], own, 1) == 1 && own[0] == pcs[0]);
    CHECK(malloc_backtrace((char *)blocks[2] + 16, own, 300) == 0 && malloc_backtrace(0, own, 300) == 0);
    /* Neither buffer is in a list. */
    struct info again = ask();
    CHECK(again.total == info.total && again.overall == info.overall);
    CHECK(!memcmp(again.data, info.data, info.overall));
    free_malloc_leak_info(again.data);
    free_malloc_leak_info(info.data);
    free_malloc_leak_info(0);
    for (int at = 0; at < 30; at++)
        free(blocks[at]);
    info = ask();
    CHECK(count(&info, ODD, &records, 0) == 0 && count(&info, OTHER, &records, 0) == 0);
    free_malloc_leak_info(info.data);
}

static void stacks(size_t frames) {
    /* Stacks that differ further up than frames are kept are one record. */
    void *blocks[20];
    for (int at = 0; at < 20; at++)
        blocks[at] = deep(10 + at, DEEP);
    struct info info = ask();
    size_t records;
    const uintptr_t *pcs;
    CHECK(count(&info, DEEP, &records, &pcs) == 20);
    if (frames <= 8)
        CHECK(records == 1);
    if (frames > 64)
        CHECK(records == 20);
    for (size_t frame = 0; frame < frames && frame < 8; frame++)
        CHECK(pcs[frame]);
    free_malloc_leak_info(info.data);
    for (int at = 0; at < 20; at++)
        free(blocks[at]);
}

static void every_function(void) {
    struct info before = ask();
    void *block = 0;
    CHECK(posix_memalign(&block, 64, 4001) == 0 && (uintptr_t)block % 64 == 0);
    void *blocks[] = {malloc(4002),          calloc(3, 1001),   realloc(0, 4004), memalign(256, 4005),
                      aligned_alloc(32, 4032), valloc(4006),    pvalloc(12289),    reallocarray(0, 2, 2004),
                      realloc(malloc(10), 4009), malloc(0)};
    struct info info = ask();
    static const size_t sizes[] = {4001, 4002, 3003, 4004, 4005, 4032, 4006, 16384, 4008, 4009};
    size_t records;
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++)
        CHECK(count(&info, sizes[at], &records, 0) == 1);
    size_t more = 0;
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++)
        more += sizes[at];
    /* A block of no bytes counts as one of one byte. */
    CHECK(info.total == before.total + more + 1);
    free_malloc_leak_info(info.data);
    free_malloc_leak_info(before.data);
    free(block);
    for (size_t at = 0; at < sizeof blocks / sizeof *blocks; at++)
        free(blocks[at]);
}

static void nulls(void) {
    struct info info;
    memset(&info, 0xa5, sizeof info);
    struct info same = info;
    get_malloc_leak_info(0, &info.overall, &info.record, &info.total, &info.frames);
    get_malloc_leak_info(&info.data, 0, &info.record, &info.total, &info.frames);
    get_malloc_leak_info(&info.data, &info.overall, 0, &info.total, &info.frames);
    get_malloc_leak_info(&info.data, &info.overall, &info.record, 0, &info.frames);
    get_malloc_leak_info(&info.data, &info.overall, &info.record, &info.total, 0);
    CHECK(!memcmp(&info, &same, sizeof info));
}

static void children(void) {
    void *mine = one(ODD);
    for (int marked = 0; marked < 2; marked++) {
        if (marked)
            grapnel_malloc_mark_parent();
        pid_t child = fork();
        if (!child) {
            size_t mark = marked ? GRAPNEL_MALLOC_IN_CHILD : 0, records;
            void *blocks[] = {one(OTHER), one(OTHER)};
            struct info info = ask();
            CHECK(count(&info, ODD, &records, 0) == 1);
            CHECK(count(&info, OTHER | mark, &records, 0) == 2);
            CHECK(marked == 0 || count(&info, OTHER, &records, 0) == 0);
            free_malloc_leak_info(info.data);
            free(blocks[0]);
            free(mine);
            info = ask();
            CHECK(count(&info, ODD, &records, 0) == 0 && count(&info, OTHER | mark, &records, 0) == 1);
            free_malloc_leak_info(info.data);
            pid_t grandchild = fork();
            if (!grandchild) {
                void *block = one(DEEP);
                info = ask();
                CHECK(count(&info, DEEP | mark, &records, 0) == 1);
                free_malloc_leak_info(info.data);
                free(block);
                _exit(0);
            }
            int status;
            CHECK(waitpid(grandchild, &status, 0) == grandchild && !status);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && !status);
    }
    size_t records;
    void *block = one(OTHER);
    struct info info = ask();
    CHECK(count(&info, OTHER, &records, 0) == 1);
    free_malloc_leak_info(info.data);
    free(block);
    free(mine);
}

static void forks_under_load(void) {
    for (int turn = 0; turn < 60; turn++) {
        pid_t child = fork();
        if (!child) {
            struct info info = ask();
            CHECK(info.overall && info.total);
            free_malloc_leak_info(info.data);
            free(one(100));
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && !status);
    }
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    size_t frames = argc > 2 ? strtoul(argv[2], 0, 10) : 16;
    /* By dlsym as by the header. */
    CHECK(dlsym(RTLD_DEFAULT, "get_malloc_leak_info") == (void *)get_malloc_leak_info);
    if (!strcmp(what, "absent")) {
        CHECK(!get_malloc_leak_info && !malloc_backtrace);
        return 0;
    }
    CHECK(get_malloc_leak_info && free_malloc_leak_info && malloc_backtrace && grapnel_malloc_mark_parent);
    if (!strcmp(what, "off")) {
        free(one(ODD));
        struct info info = ask();
        CHECK(!info.data && !info.overall && !info.record && !info.total && !info.frames);
        return 0;
    }
    if (!strcmp(what, "single")) {
        fields(frames);
        stacks(frames);
        every_function();
        nulls();
        children();
        return 0;
    }
    pthread_t threads[4];
    for (int at = 0; at < 4; at++)
        CHECK(!pthread_create(&threads[at], 0, load, 0));
    for (int turn = 0; turn < 50; turn++) {
        void *blocks[30];
        for (int at = 0; at < 30; at++)
            blocks[at] = at % 3 ? one(ODD) : other(ODD);
        struct info info = ask();
        CHECK(info.frames == frames && info.overall % info.record == 0);
        size_t total = 0, records;
        for (size_t at = 0; at < info.overall; at += info.record) {
            const size_t *words = (const size_t *)(info.data + at);
            CHECK(words[0] && words[1] && words[2]);
            total += words[0] * words[1];
        }
        CHECK(total == info.total);
        CHECK(count(&info, ODD, &records, 0) == 30 && records == 2);
        free_malloc_leak_info(info.data);
        for (int at = 0; at < 30; at++)
            free(blocks[at]);
    }
    forks_under_load();
    over = 1;
    for (int at = 0; at < 4; at++)
        pthread_join(threads[at], 0);
    return 0;
}
