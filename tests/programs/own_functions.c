/* Has a memcpy, a memset and a dl_iterate_phdr of its own, which allocate: no library may fall for them. */
#include "keep.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct dl_phdr_info;

void *memcpy(void *restrict to, const void *restrict from, size_t size) {
    volatile char *out = to;
    const volatile char *in = from;
    free(keep(malloc(1)));
    while (size--)
        *out++ = *in++;
    return to;
}

void *memset(void *to, int value, size_t size) {
    volatile char *out = to;
    free(keep(malloc(2)));
    while (size--)
        *out++ = (char)value;
    return to;
}

int dl_iterate_phdr(int (*callback)(struct dl_phdr_info *, size_t, void *), void *data) {
    (void)callback;
    (void)data;
    free(keep(malloc(3)));
    return 0;
}

static NOINLINE void wanted(void) {
    for (int i = 0; i < 1000; i++)
        free(keep(malloc(777)));
}

int main(void) {
    alarm(20);
    wanted();
    puts("own functions");
    return 0;
}
