/* Calls that are left from within their listeners, by longjmp and by pthread_exit, in threads with stacks of 16 KiB, while the process
 * forks children that leave calls, too. Every other call is told, and returns what it should. */
#define _GNU_SOURCE
#include <grapnel_hook.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 60, CALLS = 60, CHILDREN = 4 };
/* What a listener of the inner function does. */
enum how { RETURN, JUMP_AT_ENTRY, JUMP_AT_RETURN, END_AT_ENTRY, END_AT_RETURN };

static atomic_ulong told, left, jumped, ended;
static _Thread_local jmp_buf out;
static _Thread_local enum how how;

static void count_entry(grapnel_call *call, void *data)
{
    (void)call, (void)data;
    told++;
}

static void count_return(grapnel_call *call, void *data)
{
    (void)call, (void)data;
    left++;
}

static void leave_if(enum how jump, enum how end)
{
    if (how == jump) {
        jumped++;
        longjmp(out, 1);
    }
    if (how == end) {
        ended++;
        pthread_exit(NULL);
    }
}

static void on_entry(grapnel_call *call, void *data)
{
    count_entry(call, data);
    leave_if(JUMP_AT_ENTRY, END_AT_ENTRY);
}

static void on_return(grapnel_call *call, void *data)
{
    count_return(call, data);
    leave_if(JUMP_AT_RETURN, END_AT_RETURN);
}

__attribute__((noinline, noclone)) static int inner(int n)
{
    volatile int room[4] = {n};
    return room[0] * 3;
}

__attribute__((noinline, noclone)) static int outer(int n)
{
    volatile int room[4] = {n};
    return inner(room[0] + 1) + room[0];
}

static void require(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static void call(int n, enum how wanted)
{
    int (*volatile function)(int) = outer;
    how = wanted;
    if (!setjmp(out)) {
        int result = function(n);
        require(how == RETURN, "a call went on that was left");
        require(result == (n + 1) * 3 + n, "another result");
    } else {
        require(how != RETURN, "a call was left that wasn't to be");
    }
    how = RETURN;
}

static void *calls(void *data)
{
    for (int i = 0; i < CALLS; i++)
        call(i, i % 3);
    how = data ? END_AT_ENTRY : END_AT_RETURN;
    outer(1);
    require(0, "a thread went on that was ended");
    return NULL;
}

/* A child has the hooks of its parent, and leaves calls as well. */
static void fork_one(void)
{
    int status = 0;
    pid_t child = fork();
    require(child >= 0, "no child");
    if (child == 0) {
        for (int i = 0; i < CALLS; i++)
            call(i, i % 3);
        _exit(42);
    }
    require(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42, "a child failed");
}

static void check(grapnel_error *error)
{
    if (error) {
        fprintf(stderr, "%s\n%s\n", grapnel_error_message(error), grapnel_error_remedy(error));
        exit(1);
    }
}

static void start(pthread_t *thread, pthread_attr_t *attributes, int number)
{
    require(!pthread_create(thread, attributes, calls, number % 2 ? &told : NULL), "no thread");
}

int main(int count, char **arguments)
{
    grapnel_flags flags = count > 1 ? GRAPNEL_GUARDED : 0;
    grapnel_hook *hooks[2];
    grapnel_reclaimed reclaimed;
    pthread_attr_t small;
    pthread_t threads[THREADS];
    unsigned long started = 0, expected, returns;
    long least = sysconf(_SC_THREAD_STACK_MIN);
    (void)arguments;

    check(grapnel_attach((void *)inner, on_entry, on_return, NULL, flags, GRAPNEL_LIVE, &hooks[0]));
    check(grapnel_attach((void *)outer, count_entry, count_return, NULL, flags, GRAPNEL_LIVE, &hooks[1]));
    /* The first thread that ends so loads the unwinder, which takes a larger stack. */
    start(&threads[0], NULL, 0);
    pthread_join(threads[0], NULL);
    started++;

    pthread_attr_init(&small);
    require(!pthread_attr_setstacksize(&small, least > 16384 ? (size_t)least : 16384), "no such stack");
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < THREADS; i++, started++)
            start(&threads[i], &small, round + i);
        for (int i = 0; i < CHILDREN && round % 4 == 0; i++)
            fork_one();
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
    }

    /* Of three calls one returns twice and one once, both of them told. Of the threads' last ones half return once. */
    expected = started * (CALLS + 1) * 2;
    returns = started * CALLS + (started + 1) / 2;
    printf("%lu threads, %lu of %lu entries told, %lu of %lu returns, %lu left by a jump, %lu by the thread's end\n", started,
           (unsigned long)told, expected, (unsigned long)left, returns, (unsigned long)jumped, (unsigned long)ended);
    require(told == expected && ended == started && jumped == started * CALLS / 3 * 2, "not all were told");
    require(left + grapnel_missed() >= returns && left <= returns, "not all returns were told");

    check(grapnel_remove(hooks[0], GRAPNEL_LIVE));
    check(grapnel_remove(hooks[1], GRAPNEL_LIVE));
    call(1, RETURN);
    require(told == expected, "told after the removal");
    check(grapnel_reclaim(GRAPNEL_LIVE, &reclaimed));
    require(reclaimed.unknown == 0, "not all threads answered");
    printf("left and told\n");
    return 0;
}
