/* Listens to functions that the library itself and the system's threads use, and meanwhile recurses deeply, leaves calls by
 * longjmp, takes signals on a small stack, starts hundreds of threads on the smallest stacks, attaches, removes and reclaims.
 * With an argument, while other threads run them. */
#define _GNU_SOURCE
#include <grapnel_hook.h>

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"memcpy", "memmove", "memset", "memcmp", "strlen", "malloc", "calloc", "realloc", "free",
                                    "__errno_location", "getauxval", "mmap", "munmap", "mprotect", "sigaction",
                                    "pthread_create", "getpid", "syscall", "read", "write", "open", "close", "sigaltstack"};
enum { NAMES = sizeof names / sizeof *names };

static grapnel_liveness liveness;
static atomic_ulong entered, left;
static atomic_int stop;
static int signals;
static jmp_buf out;

static void on_enter(grapnel_call *call, void *data)
{
    (void)call, (void)data;
    entered++;
    errno = 77;
}

static void on_leave(grapnel_call *call, void *data)
{
    (void)call, (void)data;
    left++;
    errno = 78;
}

static void check(grapnel_error *error)
{
    if (error) {
        fprintf(stderr, "%s\n%s\n", grapnel_error_message(error), grapnel_error_remedy(error));
        exit(1);
    }
}

__attribute__((noinline)) static int deep(int n)
{
    volatile char room[32] = {1};
    return n ? deep(n - 1) + room[0] : 0;
}

__attribute__((noinline)) static int jumps(int n)
{
    volatile char room[32] = {1};
    if (n == 0)
        longjmp(out, 1);
    return room[0] ? jumps(n - 1) + room[0] : 0;
}

static void on_signal(int signal)
{
    char room[8];
    memset(room, signal, sizeof room);
    free(malloc(3));
    signals++;
}

static void *use(void *data)
{
    char text[16];
    snprintf(text, sizeof text, "%d", deep(20));
    char *volatile block = malloc(strlen(text) + 1);
    memcpy(block, text, strlen(text) + 1);
    free(realloc(block, 100));
    return data;
}

static void *use_all_the_time(void *data)
{
    while (!stop)
        use(data);
    return data;
}

static grapnel_hook *attach(void *function, void *data, grapnel_flags flags)
{
    grapnel_hook *hook;
    check(grapnel_attach(function, on_enter, on_leave, data, flags, liveness, &hook));
    return hook;
}

int main(int count, char **arguments)
{
    grapnel_hook *hooks[NAMES + 2];
    grapnel_reclaimed reclaimed;
    pthread_t others[2], threads[200];
    pthread_attr_t smallest;
    (void)arguments;
    liveness = count > 1 ? GRAPNEL_LIVE : GRAPNEL_SINGLE_THREADED;
    for (int i = 0; count > 1 && i < 2; i++)
        pthread_create(&others[i], NULL, use_all_the_time, NULL);

    for (int i = 0; i < NAMES; i++) {
        void *function;
        check(grapnel_find("libc.so", names[i], &function, NULL));
        /* The listener itself calls one of them. */
        grapnel_flags flags = strcmp(names[i], "__errno_location") ? 0 : GRAPNEL_GUARDED;
        hooks[i] = attach(function, NULL, flags | (i % 2 ? GRAPNEL_VECTORS : 0));
    }
    hooks[NAMES] = attach((void *)deep, NULL, 0);
    hooks[NAMES + 1] = attach((void *)jumps, NULL, GRAPNEL_GUARDED);

    errno = 5;
    if (deep(5000) != 5000 || errno != 5)
        return 2;
    for (int i = 0; i < 300; i++)
        if (!setjmp(out))
            jumps(50);
    if (deep(200) != 200)
        return 3;
    pthread_attr_init(&smallest);
    pthread_attr_setstacksize(&smallest, PTHREAD_STACK_MIN);
    for (int round = 0; round < 5; round++) {
        int started = 0;
        while (started < 200 && !pthread_create(&threads[started], &smallest, use, NULL))
            started++;
        while (started > 0)
            pthread_join(threads[--started], NULL);
    }
    size_t room = MINSIGSTKSZ + 8192;
    stack_t stack = {.ss_sp = malloc(room), .ss_size = room};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, NULL);
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < 2000; i++)
        raise(SIGUSR1);
    for (int i = 0; i < 20; i++) {
        grapnel_hook *hook = attach((void *)use, (void *)(size_t)i, 0);
        use(NULL);
        check(grapnel_remove(hook, liveness));
        if (i % 5 == 0)
            check(grapnel_reclaim(GRAPNEL_LIVE, &reclaimed));
    }

    for (int i = 0; i < NAMES + 2; i++)
        check(grapnel_remove(hooks[i], liveness));
    stop = 1;
    for (int i = 0; count > 1 && i < 2; i++)
        pthread_join(others[i], NULL);
    check(grapnel_reclaim(GRAPNEL_LIVE, &reclaimed));
    printf("%s, %d signals\n", entered > left && left > 10000 ? "told" : "not told", signals);
    return 0;
}
