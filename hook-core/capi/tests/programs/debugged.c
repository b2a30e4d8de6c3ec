/* A call that was relocated, for a debugger to stop in. Prints what perf is told. */
#include <grapnel_hook.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

__attribute__((noinline, noclone)) void inner(void)
{
    __asm__ volatile("");
}

/* The call lies in the first bytes: sub rsp, 8; call. */
__attribute__((noinline, noclone)) int outer(void)
{
    inner();
    return 41;
}

static int (*original)(void);

static int replacement(void)
{
    return original() + 1;
}

static void check(grapnel_error *error)
{
    if (error) {
        fprintf(stderr, "%s; %s\n", grapnel_error_message(error), grapnel_error_remedy(error));
        exit(1);
    }
}

int main(void)
{
    int (*volatile call)(void) = outer;
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    /* Somebody's pipe in the map's place, which nobody reads. */
    grapnel_error *error = mkfifo(path, 0600) ? NULL : grapnel_announce(GRAPNEL_TO_PERF);
    if (!error || remove(path))
        return 1;
    grapnel_error_free(error);
    check(grapnel_announce(GRAPNEL_TO_DEBUGGERS | GRAPNEL_TO_PERF));
    check(grapnel_replace((void *)outer, (void *)replacement, GRAPNEL_SINGLE_THREADED, (void **)&original, NULL));
    if (call() != 42)
        return 1;

    FILE *map = fopen(path, "r");
    if (!map)
        return 1;
    unsigned long long start, size, at = (uintptr_t)original;
    char name[100];
    while (fscanf(map, "%llx %llx %99[^\n]", &start, &size, name) == 3)
        printf("%s%s\n", name, start <= at && at < start + size ? ", the original" : "");
    fclose(map);
    return remove(path);
}
