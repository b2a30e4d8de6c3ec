/* What out pointers hold when a request fails. */
#include <grapnel_hook.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* An error with this in its message. */
static void says(grapnel_error *error, const char *text)
{
    expect(error && strstr(grapnel_error_message(error), text), text);
    expect(*grapnel_error_remedy(error), text);
    grapnel_error_free(error);
}

/* What must not be NULL, and flags that there are none of. */
static void nothing_is_passed(void)
{
    void *at = (void *)answer, *better_at = (void *)better, *out = GARBAGE;
    grapnel_rebinding *rebinding = GARBAGE;
    grapnel_wait *wait = GARBAGE;
    grapnel_wait_state state = 77;
    uint64_t words[2];
    says(grapnel_replace(at, NULL, GRAPNEL_LIVE, NULL, NULL), "the replacement is NULL");
    says(grapnel_attach(at, NULL, NULL, NULL, 0, GRAPNEL_LIVE, NULL), "each of enter and leave is NULL");
    says(grapnel_attach(at, on_enter, NULL, NULL, 0x48, GRAPNEL_LIVE, NULL), "0x48 stands for no flag");
    says(grapnel_probe(at, NULL, 0, on_enter, NULL, 0x8, GRAPNEL_LIVE, NULL), "0x8 stands for no flag");
    says(grapnel_announce(0x10), "0x10 stands for no audience");
    grapnel_batch_replace(NULL, at, better_at, NULL, NULL);
    grapnel_batch_attach(NULL, at, on_enter, NULL, NULL, 0, NULL);
    grapnel_batch_probe(NULL, at, NULL, 0, on_enter, NULL, 0, NULL);
    grapnel_batch_remove(NULL, NULL);
    says(grapnel_commit(NULL, GRAPNEL_LIVE), "the batch is NULL");
    says(grapnel_remove(NULL, GRAPNEL_LIVE), "the hook is NULL");
    says(grapnel_find(NULL, NULL, &out, NULL), "the name is NULL");
    says(grapnel_find(NULL, "malloc", NULL, NULL), "is NULL");
    says(grapnel_find_at(NULL, NULL, 0, NULL, NULL), "no function is known at 0");
    says(grapnel_rebind(NULL, better_at, NULL, &rebinding), "the name is NULL");
    says(grapnel_rebind("getppid", NULL, NULL, &rebinding), "the replacement is NULL");
    says(grapnel_rebind_function(NULL, better_at, &rebinding), "no object has code at 0");
    says(grapnel_rebind_function(at, NULL, &rebinding), "the replacement is NULL");
    says(grapnel_rebind_later(NULL, GRAPNEL_LIVE), "the rebinding is NULL");
    says(grapnel_rebind_again(NULL), "the rebinding is NULL");
    says(grapnel_unbind(NULL), "the rebinding is NULL");
    expect(grapnel_rebound(NULL) == 0 && rebinding == GARBAGE && out == GARBAGE, "nothing is stored");
    says(grapnel_wait_replace(NULL, "f", better_at, GRAPNEL_LIVE, NULL, &wait), "the object's name is NULL");
    expect(!wait, "nothing waits");
    says(grapnel_wait_replace("libx.so", NULL, better_at, GRAPNEL_LIVE, NULL, &wait), "the function's name is NULL");
    says(grapnel_wait_replace("libx.so", "f", NULL, GRAPNEL_LIVE, NULL, NULL), "the replacement is NULL");
    says(grapnel_wait_attach("libx.so", "f", NULL, NULL, NULL, 0, GRAPNEL_LIVE, &wait), "each of enter and leave is NULL");
    says(grapnel_wait_attach("libx.so", "f", on_enter, NULL, NULL, 0x20, GRAPNEL_LIVE, &wait), "0x20 stands for no flag");
    says(grapnel_wait_status(NULL, &state, NULL), "the hook that waits is NULL");
    says(grapnel_wait_end(NULL, GRAPNEL_LIVE), "the hook that waits is NULL");
    expect(state == 77 && !grapnel_call_registers(NULL) && !grapnel_argument(NULL, 0), "no call");
    grapnel_set_argument(NULL, 0, 1);
    grapnel_set_result(NULL, 1);
    grapnel_set_word(NULL, 1);
    expect(!grapnel_result(NULL) && !grapnel_word(NULL) && !grapnel_vector(NULL, 0, words), "no call");
    expect(!grapnel_set_vector(NULL, 0, words) && !grapnel_patch_way(NULL), "no call");
    says(grapnel_reclaim(9, NULL), "9 is no liveness");
    expect(!grapnel_reclaim(GRAPNEL_SINGLE_THREADED, NULL), "what was reclaimed needn't be told");
    expect(answer() == 41, "nothing is hooked");
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

    nothing_is_passed();
    listen_to_malloc();
    grapnel_abandon(NULL);
    batch = grapnel_begin();
    grapnel_batch_replace(batch, (void *)answer, (void *)better, NULL, &hook);
    grapnel_abandon(batch);
    expect(answer() == 41, "abandoned");
    printf("%d failures\n", failures);
    return failures != 0;
}
