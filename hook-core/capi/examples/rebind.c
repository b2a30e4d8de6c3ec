/* Binds this program's calls of getppid to a function of its own, without changing any code, and back.
 *
 *     cc examples/rebind.c $(pkg-config --cflags --libs grapnel-hook)
 */
#include <grapnel_hook.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pid_t (*original)(void);

static pid_t negative(void)
{
    return -original();
}

static void check(grapnel_error *error)
{
    if (error) {
        fprintf(stderr, "%s\n%s\n", grapnel_error_message(error), grapnel_error_remedy(error));
        exit(1);
    }
}

int main(void)
{
    pid_t parent = getppid();
    grapnel_rebinding *rebinding;

    check(grapnel_rebind("getppid", (void *)negative, (void **)&original, &rebinding));
    size_t words = grapnel_rebound(rebinding);
    pid_t rebound = getppid();
    /* What was loaded since, if anything was; and what is loaded from now on, before its constructors run. */
    check(grapnel_rebind_again(rebinding));
    check(grapnel_rebind_later(rebinding, GRAPNEL_SINGLE_THREADED));
    if (grapnel_rebound(rebinding) != words)
        return 1;
    check(grapnel_unbind(rebinding));

    /* The same by the function's address. */
    check(grapnel_rebind_function((void *)original, (void *)negative, &rebinding));
    if (getppid() != -parent)
        return 1;
    check(grapnel_unbind(rebinding));

    grapnel_error *error = grapnel_rebind("no_such_function", (void *)negative, NULL, NULL);
    if (!error)
        return 1;
    printf("refused: %s\n", grapnel_error_message(error));
    grapnel_error_free(error);

    int right = words > 0 && rebound == -parent && getppid() == parent;
    printf("rebound %s\n", right ? "and back" : "wrongly");
    return !right;
}
