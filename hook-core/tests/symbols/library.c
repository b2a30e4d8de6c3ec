/* Functions that are known in different ways. */

/* Not exported. */
__attribute__((noinline)) static int inside(int x)
{
    return x * 3 + 1;
}

int (*address_of_inside(void))(int)
{
    return inside;
}

int exported(int x)
{
    return inside(x) + 1;
}

/* Another of this name is in twin.c. */
__attribute__((noinline)) static int twin(int x)
{
    return x * 5;
}

int call_twin(int x)
{
    return twin(x) + 2;
}

/* A function that is chosen when the library is relocated, and isn't exported. */
static int chosen(void)
{
    return 11;
}

static int (*choose(void))(void)
{
    return chosen;
}

__attribute__((visibility("hidden"))) int indirect_inside(void) __attribute__((ifunc("choose")));

int call_indirect_inside(void)
{
    return indirect_inside();
}

#ifdef VERSIONS
int versioned_old(void)
{
    return 1;
}

int versioned_new(void)
{
    return 2;
}
__asm__(".symver versioned_old, versioned@OLD_1");
__asm__(".symver versioned_new, versioned@@NEW_2");
#endif
