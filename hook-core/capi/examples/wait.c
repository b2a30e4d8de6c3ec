/* Replaces a function of a library that is not loaded yet, and that comes and goes. */
#include <grapnel_hook.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* Turns "1H" into seconds. */
typedef int parse_ttl(const char *text, unsigned long *seconds);

static parse_ttl *original;

static int twice(const char *text, unsigned long *seconds)
{
    int error = original(text, seconds);
    *seconds *= 2;
    return error;
}

static void check(grapnel_error *error)
{
    if (error) {
        fprintf(stderr, "%s\n%s\n", grapnel_error_message(error), grapnel_error_remedy(error));
        exit(1);
    }
}

static grapnel_wait_state state_of(const grapnel_wait *wait)
{
    grapnel_wait_state state;
    check(grapnel_wait_status(wait, &state, NULL));
    return state;
}

int main(void)
{
    grapnel_wait *wait;
    check(grapnel_wait_replace("libresolv.so.2", "ns_parse_ttl", (void *)twice, GRAPNEL_SINGLE_THREADED,
                               (void **)&original, &wait));
    int right = state_of(wait) == GRAPNEL_WAITING;
    for (int i = 0; i < 3; i++) {
        void *library = dlopen("libresolv.so.2", RTLD_NOW);
        if (!library)
            return fprintf(stderr, "%s\n", dlerror());
        unsigned long seconds = 0;
        parse_ttl *function;
        *(void **)&function = dlsym(library, "ns_parse_ttl");
        right &= state_of(wait) == GRAPNEL_IN && function("1H", &seconds) == 0 && seconds == 7200;
        dlclose(library);
        right &= state_of(wait) == GRAPNEL_UNLOADED;
    }
    check(grapnel_wait_end(wait, GRAPNEL_SINGLE_THREADED));
    printf("hooked in three loads: %s\n", right ? "yes" : "no");
    return !right;
}
