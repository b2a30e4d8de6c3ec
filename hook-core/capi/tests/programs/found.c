/* What grapnel_find says of an indirect function, and what perf is told of a function that isn't exported. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <grapnel_hook.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void on_enter(grapnel_call *call, void *data)
{
    (void)call;
    (void)data;
}

static int failed(grapnel_error *error)
{
    if (error)
        printf("%s\n", grapnel_error_message(error));
    return error != 0;
}

int main(int count, char **arguments)
{
    void *copy, *start, *hidden;
    size_t size, size_at;
    grapnel_hook *hook;
    if (failed(grapnel_find("libc.so", "memcpy", &copy, &size)))
        return 1;
    if (failed(grapnel_find_at(copy, 0, 0, &start, &size_at)))
        return 1;
    printf("memcpy: %s\n", copy == start && size == size_at ? "one size" : "two sizes");
    if (count < 2 || !dlopen(arguments[1], RTLD_NOW))
        return 1;
    if (failed(grapnel_announce(GRAPNEL_TO_PERF)) || failed(grapnel_find(strrchr(arguments[1], '/') + 1, "hidden", &hidden, 0)))
        return 1;
    if (failed(grapnel_attach(hidden, on_enter, 0, 0, 0, GRAPNEL_SINGLE_THREADED, &hook)))
        return 1;
    char path[64], line[256];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(path, "r");
    unlink(path);
    while (map && fgets(line, sizeof line, map))
        fputs(strchr(strchr(line, ' ') + 1, ' ') + 1, stdout);
    return 0;
}
