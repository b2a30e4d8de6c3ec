/* Hooks in and out with ever new data, and their memory given back. */
#include <assert.h>
#include <grapnel_hook.h>
#include <stdio.h>

static long told;

__attribute__((noinline)) int twice(int x)
{
    __asm__ volatile("" ::: "memory");
    return 2 * x;
}

static void enter(grapnel_call *call, void *data)
{
    (void)call;
    told += (long)data;
}

static void check(grapnel_error *error)
{
    if (error) {
        fprintf(stderr, "%s\n", grapnel_error_message(error));
        grapnel_error_free(error);
        assert(0);
    }
}

int main(void)
{
    int (*volatile call)(int) = twice;
    grapnel_reclaimed reclaimed;
    size_t freed = 0, kept = 0;
    assert(grapnel_code_ways() == 0);
    for (long i = 1; i <= 3000; i++) {
        grapnel_hook *hook;
        told = 0;
        check(grapnel_attach((void *)twice, enter, i % 2 ? enter : NULL, (void *)i, 0, GRAPNEL_SINGLE_THREADED, &hook));
        assert(grapnel_patch_way((void *)twice) == GRAPNEL_PROC_MEM);
        assert(call(4) == 8 && told == (i % 2 ? 2 * i : i));
        check(grapnel_remove(hook, GRAPNEL_SINGLE_THREADED));
        assert(grapnel_patch_way((void *)twice) == 0);
        if (i % 100 == 0) {
            check(grapnel_reclaim(i % 200 ? GRAPNEL_LIVE : GRAPNEL_SINGLE_THREADED, &reclaimed));
            assert(reclaimed.unknown == 0);
            freed += reclaimed.freed;
            kept = reclaimed.kept;
        }
    }
    assert(grapnel_code_ways() == GRAPNEL_PROC_MEM);
    /* A word that only looks like an address keeps what it would lead to. */
    assert(freed > 3000 * 64 / 2 && kept < 4096);
    printf("given back\n");
    return 0;
}
