/*
 * Puts itself under filters for system calls (seccomp) that let pass what malloc and threads need, and allocates.
 *
 *     locked_up MODE ANSWER [counted]
 *
 * ANSWER is what a filter says to all other calls: `kill`, `errno` or `trap`. With `counted` it lets pass what the counting
 * library of the tests needs too. The modes:
 *
 *     main       one thread, by prctl
 *     stacked    three filters on top of each other, the last by seccomp(2)
 *     one        one thread of several; the others go on as they were, and start more
 *     all        one thread locks up all (TSYNC) while they allocate; then more threads are started
 *     handed     a thread that is locked up starts threads, which start others
 *     strict     a thread in strict mode, with what it can get without a system call
 *     clock      a thread, its children and a thread that it starts can't read the processor's clock
 *     vfork      a child of vfork locks itself up and becomes another program; another one, and ends
 *     fork       locked up, then forks
 *     exec       locked up, then becomes this program again (`plain`)
 *     mild       as exec, under a filter that lets all pass that nobody should need
 *     refused    filters that the kernel doesn't take, then threads are started
 *     trapped    provokes a trap, in whose handler it allocates
 *     attended   waits for a byte, locks itself up, allocates, waits for another, and allocates; twice, the second time
 *                in a thread that was there before
 *     plain      not locked up at all
 */
#define _GNU_SOURCE
#include "keep.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned answer;
static int counted;
static char *self;
static char **arguments;

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0)
        _exit(60);
}

static void must(int holds, const char *what) {
    if (!holds) {
        say("failed: ");
        say(what);
        say("\n");
        _exit(61);
    }
}

static NOINLINE void *down(int depth, size_t size) {
    void *block = depth == 0 ? keep(malloc(size)) : down(depth - 1, size);
    __asm__ volatile("" : : : "memory");
    return block;
}

/* Small blocks from many stacks, blocks that grow, and large ones. */
static NOINLINE void work(int count) {
    for (int i = 0; i < count; i++)
        free(down(i % 300, (size_t)(i % 100 + 1)));
    for (int round = 0; round < 3; round++) {
        void *block = malloc(1000);
        for (size_t size = 2000; size < 3000000; size *= 2)
            block = realloc(block, size);
        free(block);
    }
}

/* What malloc needs. */
static const int of_malloc[] = {SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_madvise, SYS_mprotect, SYS_futex,
                                SYS_write, SYS_exit, SYS_exit_group, SYS_rt_sigreturn};
/* What starting threads, waiting for them, and forking needs. */
static const int of_threads[] = {SYS_clone, SYS_clone3, SYS_set_robust_list, SYS_rseq, SYS_rt_sigprocmask, SYS_wait4,
                                 SYS_rt_sigaction, SYS_sched_getaffinity};
/* What installing another filter takes. */
static const int of_filters[] = {SYS_prctl, SYS_seccomp};
/* What a program needs to begin, and this one to become another one. */
static const int of_programs[] = {SYS_execve, SYS_openat, SYS_read, SYS_pread64, SYS_newfstatat, SYS_close, SYS_access,
                                  SYS_arch_prctl, SYS_set_tid_address, SYS_prlimit64, SYS_getrandom, SYS_readlink,
                                  SYS_statfs};
static const int of_counting[] = {SYS_getpid, SYS_sched_yield, SYS_openat, SYS_ftruncate, SYS_read, SYS_close};

enum { MOST = 128 };
struct filter {
    struct sock_filter code[MOST];
    struct sock_fprog program;
};

static void add(struct filter *filter, unsigned short code, unsigned char jt, unsigned k) {
    must(filter->program.len < MOST, "a short filter");
    filter->code[filter->program.len++] = (struct sock_filter){code, jt, 0, k};
}

static void begin(struct filter *filter) {
    filter->program = (struct sock_fprog){0, filter->code};
    add(filter, BPF_LD | BPF_W | BPF_ABS, 0, offsetof(struct seccomp_data, nr));
}

static void let(struct filter *filter, const int *calls, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof *calls; i++) {
        /* Jumps over the jump over the answer. */
        add(filter, BPF_JMP | BPF_JEQ | BPF_K, 1, (unsigned)calls[i]);
        add(filter, BPF_JMP | BPF_JA, 0, 1);
        add(filter, BPF_RET | BPF_K, 0, SECCOMP_RET_ALLOW);
    }
}
#define LET(filter, calls) let(filter, calls, sizeof calls)

static void end(struct filter *filter) {
    if (counted)
        LET(filter, of_counting);
    add(filter, BPF_RET | BPF_K, 0, answer);
}

static void by_prctl(struct filter *filter) {
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter->program) == 0, "prctl");
}

static void by_syscall(struct filter *filter, unsigned flags) {
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter->program) == 0, "seccomp");
}

static void lock_up(int threads) {
    struct filter filter;
    begin(&filter);
    LET(&filter, of_malloc);
    if (threads)
        LET(&filter, of_threads);
    end(&filter);
    by_prctl(&filter);
    /* The kernel has its own copy. */
    memset(&filter, 0xff, sizeof filter);
}

static void *worker(void *count) {
    work((int)(size_t)count);
    return NULL;
}

/* On a stack of its own: whether libc has one left that ended threads were on, and what it gets for a new one, depends on the
 * order in which threads end. */
static pthread_t started(void *(*function)(void *), size_t argument) {
    enum { STACK = 1 << 18 };
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(stack != MAP_FAILED, "mmap");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    must(pthread_attr_setstack(&attributes, stack, STACK) == 0, "pthread_attr_setstack");
    pthread_t thread;
    must(pthread_create(&thread, &attributes, function, (void *)argument) == 0, "pthread_create");
    pthread_attr_destroy(&attributes);
    return thread;
}

static void *ended(pthread_t thread) {
    void *result;
    must(pthread_join(thread, &result) == 0, "pthread_join");
    return result;
}

static void several(size_t count) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        threads[i] = started(worker, count);
    for (int i = 0; i < 4; i++)
        ended(threads[i]);
}

static void mode_main(void) {
    work(1000);
    lock_up(0);
    work(20000);
    say("locked up\n");
    work(20000);
}

static void mode_stacked(void) {
    work(100);
    struct filter filter;
    begin(&filter);
    LET(&filter, of_malloc);
    LET(&filter, of_filters);
    LET(&filter, of_threads);
    end(&filter);
    by_prctl(&filter);
    work(2000);
    begin(&filter);
    LET(&filter, of_malloc);
    LET(&filter, of_filters);
    end(&filter);
    by_prctl(&filter);
    work(2000);
    begin(&filter);
    LET(&filter, of_malloc);
    end(&filter);
    must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter.program) == 0, "seccomp");
    work(20000);
}

static void *locked_worker(void *count) {
    work(100);
    lock_up(0);
    work((int)(size_t)count);
    /* The rest of a thread's end needs more. */
    syscall(SYS_exit, 0);
    return NULL;
}

static void mode_one(void) {
    pthread_t one = started(locked_worker, 10000);
    pthread_t other = started(worker, 10000);
    work(10000);
    several(2000);
    ended(one);
    ended(other);
    several(2000);
}

static pthread_barrier_t barrier;

static void *before_and_after(void *count) {
    work(500);
    pthread_barrier_wait(&barrier);
    return worker(count);
}

static void mode_all(void) {
    pthread_barrier_init(&barrier, NULL, 4);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        threads[i] = started(i == 2 ? worker : before_and_after, 8000);
    pthread_t last = started(before_and_after, 8000);
    struct filter filter;
    begin(&filter);
    LET(&filter, of_malloc);
    LET(&filter, of_threads);
    end(&filter);
    by_syscall(&filter, SECCOMP_FILTER_FLAG_TSYNC);
    memset(&filter, 0xff, sizeof filter);
    pthread_barrier_wait(&barrier);
    work(8000);
    several(3000);
    for (int i = 0; i < 3; i++)
        ended(threads[i]);
    ended(last);
}

static void *second(void *count) {
    several((size_t)count);
    return NULL;
}

static void *first(void *count) {
    lock_up(1);
    ended(started(second, (size_t)count));
    several((size_t)count);
    return NULL;
}

static void mode_handed(void) {
    pthread_t thread = started(first, 1000);
    several(1000);
    ended(thread);
    several(1000);
}

enum { BLOCKS = 6 };

static NOINLINE void without_system_calls(int rounds, void *(*get)(size_t)) {
    for (int round = 0; round < rounds; round++) {
        void *blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++)
            blocks[i] = keep(get(40));
        for (int i = 0; i < BLOCKS; i++)
            free(blocks[i]);
    }
}

/* A stack that comes up in strict mode only. */
static NOINLINE void *another_way(size_t size) {
    void *block = down(20, size);
    __asm__ volatile("" : : : "memory");
    return block;
}

static void *strict(void *rounds) {
    without_system_calls(10, malloc);
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0, "strict");
    without_system_calls((int)(size_t)rounds, malloc);
    say("strict\n");
    without_system_calls((int)(size_t)rounds, another_way);
    syscall(SYS_exit, 0);
    return NULL;
}

static void mode_strict(void) {
    pthread_t thread = started(strict, 3000);
    work(3000);
    ended(thread);
    several(1000);
}

static void *without_clock(void *count) {
    must(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0, "PR_SET_TSC");
    work((int)(size_t)count);
    several(500);
    must(syscall(SYS_prctl, PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0) == 0, "PR_SET_TSC");
    work((int)(size_t)count);
    must(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0, "PR_SET_TSC");
    work((int)(size_t)count);
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    must(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "fork");
    return NULL;
}

static void mode_clock(void) {
    pthread_t thread = started(without_clock, 4000);
    work(4000);
    ended(thread);
    several(1000);
}

static void become_plain(void) {
    char *plain[] = {arguments[0], "plain", arguments[2], arguments[3], NULL};
    execv(self, plain);
    must(0, "execv");
}

static void lock_up_for_programs(void) {
    struct filter filter;
    begin(&filter);
    LET(&filter, of_malloc);
    LET(&filter, of_threads);
    LET(&filter, of_programs);
    end(&filter);
    by_prctl(&filter);
}

static void mode_vfork(void) {
    work(1000);
    int status;
    for (int becomes = 0; becomes < 2; becomes++) {
        pid_t child = vfork();
        if (child == 0) {
            lock_up_for_programs();
            if (becomes)
                become_plain();
            _exit(9);
        }
        must(waitpid(child, &status, 0) == child, "waitpid");
        must(WIFEXITED(status) && WEXITSTATUS(status) == (becomes ? 0 : 9), "the child's end");
    }
    work(5000);
    several(1000);
}

static void mode_fork(void) {
    work(1000);
    lock_up(1);
    work(1000);
    pid_t child = fork();
    if (child == 0) {
        work(2000);
        several(500);
        _exit(11);
    }
    int status;
    must(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 11, "the child's end");
    work(1000);
}

static void mode_exec(void) {
    work(1000);
    lock_up_for_programs();
    work(1000);
    say("now exec\n");
    become_plain();
}

static void mode_mild(void) {
    struct filter filter;
    begin(&filter);
    static const int dangerous[] = {SYS_reboot, SYS_swapon, SYS_mount, SYS_ptrace, SYS_kexec_load};
    for (size_t i = 0; i < sizeof dangerous / sizeof *dangerous; i++) {
        add(&filter, BPF_JMP | BPF_JEQ | BPF_K, 1, (unsigned)dangerous[i]);
        add(&filter, BPF_JMP | BPF_JA, 0, 1);
        add(&filter, BPF_RET | BPF_K, 0, answer);
    }
    add(&filter, BPF_RET | BPF_K, 0, SECCOMP_RET_ALLOW);
    work(1000);
    by_prctl(&filter);
    work(1000);
    say("now exec\n");
    become_plain();
}

static void mode_refused(void) {
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    struct sock_filter code[2] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS}, {0xffff, 0, 0, 0}};
    struct sock_fprog none = {0, code}, rubbish = {2, code};
    void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sock_fprog unreadable = {1, nowhere};
    const void *programs[] = {NULL, nowhere, &none, &rubbish, &unreadable};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        errno = 0;
        must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, programs[i]) == -1, "prctl");
        must(errno == EFAULT || errno == EINVAL, "errno");
        int before = errno;
        must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, programs[i]) == -1, "seccomp");
        must(errno == before, "errno");
    }
    must(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) == -1 && errno == EINVAL, "strict");
    must(syscall(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0) == 0, "there is a filter");
    munmap(nowhere, 4096);
    work(1000);
    several(1000);
}

static volatile sig_atomic_t traps;

static void on_trap(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    traps += info->si_syscall == SYS_getuid ? 1 : 1000;
    int saved = errno;
    work(10);
    errno = saved;
}

static void mode_trapped(void) {
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSYS, &action, NULL);
    work(1000);
    answer = SECCOMP_RET_TRAP;
    lock_up(1);
    work(5000);
    for (int i = 0; i < 5; i++)
        syscall(SYS_getuid);
    several(500);
    must(traps == 5, "five traps");
}

static void attended(void) {
    static const int of_reading[] = {SYS_read};
    char byte;
    must(read(0, &byte, 1) == 1, "a byte");
    struct filter filter;
    begin(&filter);
    LET(&filter, of_malloc);
    LET(&filter, of_threads);
    LET(&filter, of_reading);
    end(&filter);
    by_syscall(&filter, 0);
    work(5000);
    several(300);
    say("locked up\n");
    must(read(0, &byte, 1) == 1, "a byte");
    work(1000);
}

static void *attended_thread(void *unused) {
    attended();
    return unused;
}

static void mode_attended(void) {
    work(100);
    pthread_t thread = started(attended_thread, 0);
    ended(thread);
    attended();
}

static void mode_plain(void) {
    work(1000);
    several(100);
}

int main(int argc, char **argv) {
    /* Else libc reads a file to see how many processors there are, when threads happen to meet in malloc. */
    mallopt(M_ARENA_MAX, 1000);
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"main", mode_main},       {"stacked", mode_stacked}, {"one", mode_one},
                 {"all", mode_all},         {"handed", mode_handed},   {"strict", mode_strict},
                 {"clock", mode_clock},     {"vfork", mode_vfork},     {"fork", mode_fork},
                 {"exec", mode_exec},       {"mild", mode_mild},       {"refused", mode_refused},
                 {"trapped", mode_trapped}, {"attended", mode_attended}, {"plain", mode_plain}};
    must(argc >= 3, "two arguments");
    answer = strcmp(argv[2], "kill") == 0    ? SECCOMP_RET_KILL_PROCESS
             : strcmp(argv[2], "errno") == 0 ? SECCOMP_RET_ERRNO | EACCES
                                             : SECCOMP_RET_TRAP;
    counted = argc > 3;
    self = argv[0];
    arguments = argv;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run();
            say("done\n");
            /* What ends a thread of glibc's needs more. */
            _exit(0);
        }
    return 62;
}
