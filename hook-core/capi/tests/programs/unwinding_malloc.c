/* A listener on malloc takes a backtrace, while unwinders are told of all code that is made: they allocate for that, with a
   lock held which the backtrace wants, too. */
#include <grapnel_hook.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <unwind.h>

static volatile long steps;

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *data)
{
    (void)context;
    (void)data;
    steps++;
    return _URC_NO_REASON;
}

static void on_enter(grapnel_call *call, void *data)
{
    (void)call;
    (void)data;
    _Unwind_Backtrace(step, 0);
}

static void quiet(grapnel_call *call, void *data)
{
    (void)call;
    (void)data;
}

__attribute__((noinline)) static int function(int x)
{
    int y = x * 3;
    for (int i = 0; i < 3; i++)
        y += getppid() > 0;
    return y;
}

static int failed(grapnel_error *error)
{
    if (error)
        printf("%s\n", grapnel_error_message(error));
    return error != 0;
}

int main(void)
{
    grapnel_hook *hook;
    /* Ends a thread that waits for itself. */
    alarm(20);
    _Unwind_Backtrace(step, 0);
    if (failed(grapnel_announce(GRAPNEL_TO_UNWINDERS)))
        return 1;
    if (failed(grapnel_attach((void *)malloc, on_enter, 0, 0, 0, GRAPNEL_SINGLE_THREADED, &hook)))
        return 1;
    steps = 0;
    free(malloc(5));
    long told = steps;
    if (failed(grapnel_attach((void *)function, quiet, 0, 0, 0, GRAPNEL_SINGLE_THREADED, &hook)))
        return 1;
    steps = 0;
    free(malloc(5));
    printf("%s before, %s after, %d\n", told ? "told" : "untold", steps ? "told" : "untold", function(1));
    return 0;
}
