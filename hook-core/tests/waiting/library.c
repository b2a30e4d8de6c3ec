/* A library that is loaded and unloaded while hooks wait for it. Its constructor calls what is hooked. */
#include <unistd.h>

#ifndef NUMBER
#define NUMBER 1
#endif

static int seen_by_constructor[5];

__attribute__((noinline)) int number(int x)
{
    __asm__ volatile("" : "+r"(x));
    return x + NUMBER;
}

/* Not exported. */
__attribute__((noinline)) static int inside(int x)
{
    __asm__ volatile("" : "+r"(x));
    return x + 10 * NUMBER;
}

static int chosen(int x)
{
    __asm__ volatile("" : "+r"(x));
    return x + 100 * NUMBER;
}

static int (*choose(void))(int)
{
    return chosen;
}

int indirect(int x) __attribute__((ifunc("choose")));

/* Through a word that the dynamic linker fills. */
int imported(void)
{
    return getppid();
}

int (*const imported_table[])(void) = {0, getppid};

int from_table(void)
{
    return imported_table[1]();
}

int call_inside(int x)
{
    return inside(x);
}

int call_indirect(int x)
{
    return indirect(x);
}

int constructor_saw(int i)
{
    return seen_by_constructor[i];
}

#ifdef BROKEN
/* Nothing defines it, so that relocation fails. */
extern int no_such_symbol_anywhere;

int *broken(void)
{
    return &no_such_symbol_anywhere;
}
#endif

__attribute__((constructor)) static void start(void)
{
    seen_by_constructor[0] = number(0);
    seen_by_constructor[1] = inside(0);
    seen_by_constructor[2] = indirect(0);
    seen_by_constructor[3] = imported();
    seen_by_constructor[4] = from_table();
}
