/* Threads by C11's functions, whose attributes libc doesn't give as an address. */
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>

static int allocates(void *unused) {
    for (int i = 0; i < 100; i++)
        free(keep(malloc(100)));
    return unused != NULL;
}

int main(void) {
    for (int round = 0; round < 20; round++) {
        thrd_t thread;
        int result = 1;
        if (thrd_create(&thread, allocates, NULL) != thrd_success || thrd_join(thread, &result) != thrd_success || result != 0)
            return 1;
    }
    puts("done");
    return 0;
}
