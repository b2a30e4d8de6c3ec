/* A library opened with RTLD_DEEPBIND: its calls go to libc whatever is preloaded. */
#include "keep.h"
#include <stdlib.h>

static void *held[30];

/* 30 allocations of 100, 10 reallocations to 300, 20 frees. 10 blocks of 300 are left. */
NOINLINE void deep_work(void) {
    for (int i = 0; i < 30; i++)
        held[i] = keep(malloc(100));
    for (int i = 0; i < 10; i++)
        held[i] = keep(realloc(held[i], 300));
    for (int i = 10; i < 30; i++)
        free(held[i]);
}
