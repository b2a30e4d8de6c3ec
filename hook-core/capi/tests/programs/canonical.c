/* A program that is no PIE and takes the address of a function: all pointers to it, also a library's, lead to an entry of the
   program's own linkage table. */
#include <grapnel_hook.h>

#include <stdio.h>
#include <unistd.h>

/* The library's. */
int call_kept(void);
int is_kept(pid_t (*function)(void));

static pid_t replacement(void)
{
    return -7;
}

/* The address in code, which no relocation changes. */
static pid_t (*volatile pointer)(void);

/* By a call, by the program's pointer, and by the library's. */
static int all_are(pid_t expected)
{
    return getppid() == expected && pointer() == expected && call_kept() == expected;
}

static int failed(const char *what, grapnel_error *error)
{
    printf("%s: %s\n", what, grapnel_error_message(error));
    return 1;
}

int main(void)
{
    pid_t parent = getppid();
    pointer = getppid;
    if (!all_are(parent) || !is_kept(pointer))
        return 1;
    for (int by_address = 0; by_address < 2; by_address++) {
        grapnel_rebinding *rebinding;
        grapnel_error *error = by_address
            ? grapnel_rebind_function((void *)pointer, (void *)replacement, &rebinding)
            : grapnel_rebind("getppid", (void *)replacement, NULL, &rebinding);
        if (error)
            return failed("rebinding", error);
        if (!all_are(-7))
            return failed("not everywhere", NULL);
        /* Pointers that were equal are. */
        if (!is_kept(pointer))
            return failed("no longer equal", NULL);
        if ((error = grapnel_unbind(rebinding)))
            return failed("undoing", error);
        if (!all_are(parent) || !is_kept(pointer))
            return failed("not as before", NULL);
    }
    printf("rebound by name and by address\n");
    return 0;
}
