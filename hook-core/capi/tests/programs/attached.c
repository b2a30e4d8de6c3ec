/* Calls a hooked function until a debugger that is attached says otherwise; or with an argument for a second, for perf. Says its
 * number first. */
#include <grapnel_hook.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int (*original)(int);
static volatile int stop;

__attribute__((noinline, noclone)) static int outer(int n)
{
    volatile int room[4] = {n};
    return room[0] + 1;
}

static int replacement(int n)
{
    return original(n) + 1;
}

static void check(grapnel_error *error)
{
    if (error) {
        fprintf(stderr, "%s; %s\n", grapnel_error_message(error), grapnel_error_remedy(error));
        exit(1);
    }
}

int main(int count, char **arguments)
{
    int (*volatile call)(int) = outer;
    grapnel_hook *hook;
    (void)arguments;
    check(grapnel_announce(count > 1 ? GRAPNEL_TO_PERF : GRAPNEL_TO_DEBUGGERS));
    check(grapnel_replace((void *)outer, (void *)replacement, GRAPNEL_LIVE, (void **)&original, &hook));
    printf("%d\n", getpid());
    fflush(stdout);
    /* Of the time that it runs, however busy the machine is. */
    while (!stop && (count == 1 || clock() < CLOCKS_PER_SEC))
        for (int i = 0; i < 100000 && !stop; i++)
            if (call(i) != i + 2)
                return 2;
    check(grapnel_remove(hook, GRAPNEL_LIVE));
    if (call(1) != 2)
        return 3;
    puts("stopped and removed");
    return 0;
}
