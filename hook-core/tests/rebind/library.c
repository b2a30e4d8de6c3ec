/* Every kind of word that holds a function's address. */
#include <unistd.h>

/* The compiler sees no more of it than a caller in another library. */
__attribute__((noinline, noclone)) int own(void)
{
    return 5;
}

static int chosen(void)
{
    return 11;
}

static int (*choose(void))(void)
{
    return chosen;
}

int indirect(void) __attribute__((ifunc("choose")));
/* Not named by any relocation. */
int indirect_inside(void) __attribute__((ifunc("choose"), visibility("hidden")));
extern int absent(void) __attribute__((weak));

/* In memory that is protected after relocation: named, and if the library is linked symbolically not. */
int (*const imported[])(void) = {getppid, getppid, 0, getppid};
int (*const owned[])(void) = {own, 0, own, own};
int (*const indirectly[])(void) = {indirect};
/* In memory that stays writable. */
int (*changing)(void) = getppid;

int call_imported(void)
{
    return getppid();
}

int call_table(int i)
{
    return imported[i]();
}

int call_changing(void)
{
    return changing();
}

int call_own(int i)
{
    return owned[i]();
}

/* By a call that is bound when it is first made, unless the library is linked otherwise. */
int call_own_by_name(void)
{
    return own();
}

int call_indirect(void)
{
    return indirect();
}

int call_indirect_inside(void)
{
    return indirect_inside();
}

int call_indirect_table(void)
{
    return indirectly[0]();
}

int has_absent(void)
{
    return absent != 0;
}
