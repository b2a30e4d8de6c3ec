/*
 * The ground truth of the tests: counts the allocation functions by symbol interposition (LD_PRELOAD).
 *
 * It shares nothing with grapnel: no hooks, no unwinding, other code in another language. The real functions
 * are libc's own __libc_* names, which need no dlsym and so work from the very first call.
 *
 * The counters and the table of live blocks are in a file that is mapped MAP_SHARED, so they survive _exit, a
 * crash and SIGKILL. A file per process: $TRUTH_DIR/<pid>.<n>.truth, where n counts the programs that one pid
 * has executed. A child of fork starts a new file with zeroes and an empty table at its first event.
 *
 * What counts:
 *   allocations    successful malloc, calloc, the memalign family, operator new, and realloc(NULL, n)
 *   reallocations  realloc and reallocarray of a block that gave a new one
 *   frees          free and cfree of a block, operator delete, and realloc(p, 0)
 *   bytes          as requested by the caller; peak is the most that was live at a time
 * A failed call counts nothing. A free of a block that is not in the table counts as a free and changes no
 * live figure.
 *
 * Environment: TRUTH_DIR, where the files go; without it nothing is counted. TRUTH_FOLLOW=1 leaves the
 * variables as they are so that programs started by this one are counted too. Otherwise the constructor takes
 * TRUTH_* and this library's name in LD_PRELOAD out of the environment in place, so that the program sees the
 * environment, and makes the allocations, that it would without this library.
 *
 * The lock is a word in private memory that holds the owner's pid: a child of fork takes it from a thread that
 * it doesn't have. An allocation in a signal handler that interrupted an allocation would wait for ever; no
 * program here does that, since malloc itself doesn't allow it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void *__libc_valloc(size_t);
void *__libc_pvalloc(size_t);
void __libc_free(void *);

#define SLOTS (1u << 22)
#define EXPORT __attribute__((visibility("default")))

struct slot {
    uint64_t address; /* 0: never used. 1: was used. */
    uint64_t size;
};

/* The file. tests/src/truth.rs reads it. */
struct truth {
    char magic[8];
    uint64_t pid;
    uint64_t allocations, frees, reallocations, allocated_bytes, peak_bytes, live_allocations, live_bytes;
    uint64_t unknown_frees;
    uint64_t overflowed; /* the table was full: the figures are worthless */
    uint64_t command_len;
    char command[4000]; /* as in /proc/pid/cmdline */
    struct slot slots[SLOTS];
};

static struct truth *truth;
static pid_t truth_pid;
static _Atomic int lock;
static char directory[3000];
static int wanted = -1;

/* The agent under test has one TLS block, and glibc's allocations for each thread grow with the number of
 * libraries that have one. With this the library weighs the same as the agent. */
static __thread volatile char tls_weight __attribute__((tls_model("initial-exec"), used));

static size_t read_file(const char *path, char *buffer, size_t size) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    size_t len = 0;
    for (;;) {
        long got = syscall(SYS_read, fd, buffer + len, size - len);
        if (got <= 0)
            break;
        len += (size_t)got;
    }
    syscall(SYS_close, fd);
    return len;
}

/* TRUTH_DIR from the environment that the kernel gave: libc's environ is not yet set at the first malloc. */
static void find_directory(void) {
    wanted = 0;
    size_t size = 4u << 20;
    char *text = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (text == MAP_FAILED)
        return;
    size_t len = read_file("/proc/self/environ", text, size - 1);
    for (size_t at = 0; at < len; at += strlen(text + at) + 1) {
        if (strncmp(text + at, "TRUTH_DIR=", 10) == 0 && strlen(text + at + 10) < sizeof directory) {
            strcpy(directory, text + at + 10);
            wanted = 1;
        }
    }
    munmap(text, size);
}

static char *put_number(char *out, unsigned n) {
    char digits[12];
    int count = 0;
    do
        digits[count++] = (char)('0' + n % 10);
    while (n /= 10);
    while (count > 0)
        *out++ = digits[--count];
    return out;
}

static void start_file(pid_t pid) {
    char path[sizeof directory + 64];
    int fd = -1;
    truth_pid = pid;
    truth = NULL;
    for (unsigned n = 0; n < 1000 && fd < 0; n++) {
        char *out = stpcpy(path, directory);
        *out++ = '/';
        out = put_number(out, (unsigned)pid);
        *out++ = '.';
        out = put_number(out, n);
        strcpy(out, ".truth");
        fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd == -1 && errno != EEXIST)
            return;
    }
    if (fd < 0)
        return;
    if (ftruncate(fd, sizeof(struct truth)) == 0) {
        /* No reserve: the table is sparse, and most of it is never touched. */
        void *at = mmap(NULL, sizeof(struct truth), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (at != MAP_FAILED)
            truth = at;
    }
    syscall(SYS_close, fd);
    if (truth) {
        truth->pid = (uint64_t)pid;
        truth->command_len = read_file("/proc/self/cmdline", truth->command, sizeof truth->command);
        memcpy(truth->magic, "TRUTH 1", 8);
    }
}

/* Takes the lock and answers whether there is anything to count into. */
static int enter(void) {
    if (wanted == 0)
        return 0;
    int saved = errno;
    pid_t pid = (pid_t)syscall(SYS_getpid);
    for (;;) {
        int owner = 0;
        if (atomic_compare_exchange_weak(&lock, &owner, pid))
            break;
        if (owner != 0 && owner != pid && atomic_compare_exchange_weak(&lock, &owner, pid))
            break;
        syscall(SYS_sched_yield);
    }
    if (wanted < 0)
        find_directory();
    if (wanted > 0 && truth_pid != pid)
        start_file(pid);
    errno = saved;
    if (truth)
        return 1;
    atomic_store(&lock, 0);
    return 0;
}

static void leave(void) {
    atomic_store(&lock, 0);
}

static size_t slot_of(uint64_t address) {
    return (size_t)((address >> 4) * 0x9e3779b97f4a7c15u >> 42) & (SLOTS - 1);
}

static void insert(void *block, size_t size) {
    uint64_t address = (uint64_t)(uintptr_t)block;
    size_t at = slot_of(address);
    for (size_t step = 0; step < SLOTS; step++, at = (at + 1) & (SLOTS - 1)) {
        if (truth->slots[at].address <= 1) {
            truth->slots[at].size = size;
            truth->slots[at].address = address;
            truth->live_allocations++;
            truth->live_bytes += size;
            if (truth->live_bytes > truth->peak_bytes)
                truth->peak_bytes = truth->live_bytes;
            return;
        }
    }
    truth->overflowed = 1;
}

/* Whether the block was known; its size then. */
static int take_out(void *block, size_t *size) {
    uint64_t address = (uint64_t)(uintptr_t)block;
    size_t at = slot_of(address);
    for (size_t step = 0; step < SLOTS; step++, at = (at + 1) & (SLOTS - 1)) {
        struct slot *slot = &truth->slots[at];
        if (slot->address == 0)
            return 0;
        if (slot->address == address) {
            *size = slot->size;
            /* A slot before a never used one can become never used again: it keeps chains short. */
            slot->address = truth->slots[(at + 1) & (SLOTS - 1)].address == 0 ? 0 : 1;
            truth->live_allocations--;
            truth->live_bytes -= *size;
            return 1;
        }
    }
    return 0;
}

static void *allocated(void *block, size_t size) {
    if (block && enter()) {
        truth->allocations++;
        truth->allocated_bytes += size;
        insert(block, size);
        leave();
    }
    return block;
}

EXPORT void *malloc(size_t size) {
    return allocated(__libc_malloc(size), size);
}

EXPORT void *calloc(size_t count, size_t size) {
    return allocated(__libc_calloc(count, size), count * size);
}

EXPORT void *memalign(size_t alignment, size_t size) {
    return allocated(__libc_memalign(alignment, size), size);
}

EXPORT void *aligned_alloc(size_t alignment, size_t size) {
    return allocated(__libc_memalign(alignment, size), size);
}

EXPORT void *valloc(size_t size) {
    return allocated(__libc_valloc(size), size);
}

EXPORT void *pvalloc(size_t size) {
    return allocated(__libc_pvalloc(size), size);
}

EXPORT int posix_memalign(void **out, size_t alignment, size_t size) {
    if (alignment % sizeof(void *) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0)
        return EINVAL;
    int saved = errno;
    void *block = __libc_memalign(alignment, size);
    errno = saved;
    if (!block)
        return ENOMEM;
    *out = allocated(block, size);
    return 0;
}

EXPORT void free(void *block) {
    if (block && enter()) {
        size_t size;
        truth->frees++;
        if (!take_out(block, &size))
            truth->unknown_frees++;
        leave();
    }
    __libc_free(block);
}

EXPORT void cfree(void *block) {
    free(block);
}

/* C++'s operators, by the names of the Itanium ABI: the sizes that they are asked for are not always those that libstdc++
 * asks malloc for. Where there is no memory, libstdc++'s own find out what to do. */
static void *of_new(const char *name, size_t size, size_t alignment, const void *nothrow) {
    void *block = alignment ? __libc_memalign(alignment, size) : __libc_malloc(size ? size : 1);
    if (block)
        return allocated(block, size);
    void *real = dlsym(RTLD_NEXT, name);
    if (alignment)
        return ((void *(*)(size_t, size_t, const void *))real)(size, alignment, nothrow);
    return ((void *(*)(size_t, const void *))real)(size, nothrow);
}

/* A name with a `size_t` in it. */
#if __SIZEOF_SIZE_T__ == 8
#define SIZED(before, after) before##m##after
#else
#define SIZED(before, after) before##j##after
#endif

#define NEW(name) NEW_OF(name)
#define NEW_OF(name)                                                                                                   \
    EXPORT void *name(size_t size) {                                                                                   \
        return of_new(#name, size, 0, NULL);                                                                           \
    }                                                                                                                  \
    EXPORT void *name##RKSt9nothrow_t(size_t size, const void *nothrow) {                                              \
        return of_new(#name "RKSt9nothrow_t", size, 0, nothrow);                                                       \
    }                                                                                                                  \
    EXPORT void *name##St11align_val_t(size_t size, size_t alignment) {                                                \
        return of_new(#name "St11align_val_t", size, alignment, NULL);                                                 \
    }                                                                                                                  \
    EXPORT void *name##St11align_val_tRKSt9nothrow_t(size_t size, size_t alignment, const void *nothrow) {             \
        return of_new(#name "St11align_val_tRKSt9nothrow_t", size, alignment, nothrow);                                \
    }
NEW(SIZED(_Znw, ))
NEW(SIZED(_Zna, ))

#define DELETE(name)                                                                                                   \
    EXPORT void name(void *block) {                                                                                    \
        free(block);                                                                                                   \
    }
DELETE(_ZdlPv)
DELETE(SIZED(_ZdlPv, ))
DELETE(_ZdlPvRKSt9nothrow_t)
DELETE(_ZdlPvSt11align_val_t)
DELETE(SIZED(_ZdlPv, St11align_val_t))
DELETE(_ZdlPvSt11align_val_tRKSt9nothrow_t)
DELETE(_ZdaPv)
DELETE(SIZED(_ZdaPv, ))
DELETE(_ZdaPvRKSt9nothrow_t)
DELETE(_ZdaPvSt11align_val_t)
DELETE(SIZED(_ZdaPv, St11align_val_t))
DELETE(_ZdaPvSt11align_val_tRKSt9nothrow_t)

EXPORT void *realloc(void *block, size_t size) {
    if (!block)
        return malloc(size);
    if (size == 0) {
        free(block);
        return NULL;
    }
    size_t old = 0;
    int known = 0;
    if (enter()) {
        known = take_out(block, &old);
        leave();
    }
    void *fresh = __libc_realloc(block, size);
    if (enter()) {
        if (fresh) {
            truth->reallocations++;
            truth->allocated_bytes += size;
            insert(fresh, size);
        } else if (known) {
            insert(block, old);
        }
        leave();
    }
    return fresh;
}

EXPORT void *reallocarray(void *block, size_t count, size_t size) {
    size_t total;
    if (__builtin_mul_overflow(count, size, &total)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(block, total);
}

/* Takes this library out of "LD_PRELOAD=a:b c" in place. Answers whether anything is left. */
static int strip_preload(char *variable, const char *own) {
    char *in = variable + strlen("LD_PRELOAD="), *out = in, *start = in;
    size_t own_len = strlen(own);
    while (*in) {
        size_t len = strcspn(in, ": ");
        if (len > 0 && !(len == own_len && memcmp(in, own, len) == 0)) {
            if (out != start)
                *out++ = ':';
            memmove(out, in, len);
            out += len;
        }
        in += len;
        in += strspn(in, ": ");
    }
    *out = 0;
    return out != start;
}

__attribute__((constructor)) static void hide(int argc, char **argv, char **environment) {
    (void)argc;
    (void)argv;
    Dl_info self;
    int follow = 0;
    for (char **at = environment; *at; at++)
        follow |= strcmp(*at, "TRUTH_FOLLOW=1") == 0;
    if (follow || !dladdr((void *)hide, &self))
        return;
    char **out = environment;
    for (char **in = environment; *in; in++) {
        if (strncmp(*in, "TRUTH_", 6) == 0)
            continue;
        if (strncmp(*in, "LD_PRELOAD=", 11) == 0 && !strip_preload(*in, self.dli_fname))
            continue;
        *out++ = *in;
    }
    *out = NULL;
}
