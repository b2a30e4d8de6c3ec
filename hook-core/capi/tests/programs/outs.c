/* What out pointers hold when a request fails. */
#include <grapnel_hook.h>

#include <stdio.h>
#include <stdlib.h>

#define GARBAGE ((void *)0x1234)

static int failures;

static void expect(int holds, const char *what)
{
    if (!holds) {
        printf("not so: %s\n", what);
        failures++;
    }
}

__attribute__((noinline)) static int answer(void)
{
    __asm__ volatile("");
    return 41;
}

static int better(void)
{
    return 42;
}

static void fails(grapnel_error *error, grapnel_hook **hook, void **original, const char *when)
{
    expect(error != NULL, when);
    expect(*hook == NULL, when);
    expect(*original == GARBAGE, when);
    grapnel_error_free(error);
    *hook = GARBAGE;
    *original = GARBAGE;
}

static void on_enter(grapnel_call *call, void *data)
{
    grapnel_hook *hook = GARBAGE;
    void *original = GARBAGE;
    (void)call;
    /* Calls that the library makes before and after are not of interest. */
    grapnel_error *busy = grapnel_commit(grapnel_begin(), GRAPNEL_SINGLE_THREADED);
    grapnel_error_free(busy);
    if (!busy)
        return;
    fails(grapnel_replace((void *)answer, (void *)better, GRAPNEL_SINGLE_THREADED, &original, &hook), &hook, &original,
          "in a function that a commit calls");
    ++*(int *)data;
}

/* Called by the library itself, while it commits. */
static void listen_to_malloc(void)
{
    void *malloc_at;
    grapnel_hook *on_malloc, *on_answer;
    int told = 0;
    if (grapnel_find("libc.so", "malloc", &malloc_at, NULL)
        || grapnel_attach(malloc_at, on_enter, NULL, &told, GRAPNEL_GUARDED, GRAPNEL_SINGLE_THREADED, &on_malloc))
        abort();
    told = 0;
    grapnel_error *error = grapnel_replace((void *)answer, (void *)better, GRAPNEL_SINGLE_THREADED, NULL, &on_answer);
    expect(!error && answer() == 42 && told > 0, "told of malloc while it commits");
    expect(!grapnel_remove(on_answer, GRAPNEL_SINGLE_THREADED), "removed");
    expect(!grapnel_remove(on_malloc, GRAPNEL_SINGLE_THREADED), "removed");
}

int main(void)
{
    static int data;
    grapnel_hook *hook = GARBAGE;
    void *original = GARBAGE;
    fails(grapnel_replace(&data, (void *)better, GRAPNEL_SINGLE_THREADED, &original, &hook), &hook, &original, "no code");
    fails(grapnel_replace(NULL, (void *)better, GRAPNEL_LIVE, &original, &hook), &hook, &original, "NULL");
    fails(grapnel_replace((void *)answer, (void *)better, 7, &original, &hook), &hook, &original, "a wrong liveness");
    fails(grapnel_probe((void *)answer, NULL, 0, NULL, NULL, 0, GRAPNEL_LIVE, &hook), &hook, &original, "no listener");
    fails(grapnel_remove(NULL, GRAPNEL_LIVE), (hook = NULL, &hook), &original, "no hook");

    /* One that fails doesn't keep the others out. */
    grapnel_hook *second = GARBAGE;
    grapnel_batch *batch = grapnel_begin();
    grapnel_batch_probe(batch, (void *)answer, NULL, 0, NULL, NULL, 0, &hook);
    grapnel_batch_replace(batch, (void *)answer, (void *)better, &original, &second);
    grapnel_batch_replace(batch, &data, (void *)better, NULL, NULL);
    grapnel_error *error = grapnel_commit(batch, GRAPNEL_SINGLE_THREADED);
    expect(error && hook == NULL && second && second != GARBAGE && answer() == 42, "one of three");
    expect(grapnel_error_address(error) == (uint64_t)answer, "the first one's error");
    expect(((int (*)(void))original)() == 41, "the original");
    grapnel_error_free(error);
    expect(!grapnel_remove(second, GRAPNEL_SINGLE_THREADED) && answer() == 41, "removed");

    listen_to_malloc();
    grapnel_abandon(NULL);
    batch = grapnel_begin();
    grapnel_batch_replace(batch, (void *)answer, (void *)better, NULL, &hook);
    grapnel_abandon(batch);
    expect(answer() == 41, "abandoned");
    printf("%d failures\n", failures);
    return failures != 0;
}
