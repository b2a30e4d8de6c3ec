/* Calls that must fail and count nothing, between calls that succeed. Blocks survive a failed realloc. */
#define _GNU_SOURCE
#include "keep.h"
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void failed(const char *what, void *block) {
    int error = errno;
    printf("%s: %s %s\n", what, block ? "BLOCK" : "null", error == ENOMEM ? "ENOMEM" : error == EINVAL ? "EINVAL" : "other");
    errno = 0;
}

int main(void) {
    volatile size_t huge = PTRDIFF_MAX, most = SIZE_MAX, half = SIZE_MAX / 2 + 2;
    errno = 0;
    char *volatile p = malloc(77);
    strcpy(p, "still here");

    failed("malloc(PTRDIFF_MAX)", malloc(huge));
    failed("malloc(PTRDIFF_MAX + 1)", malloc(huge + 1));
    failed("malloc(SIZE_MAX)", malloc(most));
    failed("malloc(-4096)", malloc(most - 4095));
    failed("calloc overflow", calloc(half, 2));
    failed("calloc overflow 2", calloc(most, most));
    failed("calloc huge", calloc(1, huge));
    failed("realloc(NULL, huge)", realloc(NULL, huge));
    failed("realloc(p, huge)", realloc(p, huge));
    failed("realloc(p, SIZE_MAX)", realloc(p, most));
    printf("%s\n", p);
    failed("reallocarray(p, overflow)", reallocarray(p, half, 2));
    failed("reallocarray(p, huge, 1)", reallocarray(p, huge, 1));
    failed("reallocarray(NULL, overflow)", reallocarray(NULL, most, 3));
    printf("%s\n", p);

    static const size_t wrong[] = {0, 1, 2, 4, 3, 7, 24, 48, 100, 4095};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *out = &out;
        errno = 0;
        int error = posix_memalign(&out, wrong[i], 64);
        printf("posix_memalign(%zu): %d untouched %d errno %d\n", wrong[i], error, out == &out, errno);
    }
    void *out = &out;
    int error = posix_memalign(&out, 64, huge);
    printf("posix_memalign(huge): %d untouched %d\n", error, out == &out);
    errno = 0;
    failed("memalign(SIZE_MAX / 2 + 2)", memalign(half, 10));
    failed("memalign(huge)", memalign(64, huge));
    failed("aligned_alloc(huge)", aligned_alloc(64, huge));
    failed("valloc(huge)", valloc(huge));
    failed("pvalloc(huge)", pvalloc(huge));
    failed("pvalloc(SIZE_MAX)", pvalloc(most));

    /* A mapped block, too big to be moved anywhere. */
    char *volatile mapped = malloc(4 << 20);
    mapped[4000000] = 5;
    failed("realloc(mapped, huge)", realloc(mapped, huge));
    printf("%d\n", mapped[4000000]);
    free(mapped);

    p = realloc(p, 500);
    printf("%s\n", p);
    free(p);
    void *volatile left = calloc(3, 11);
    printf("left %d\n", left != NULL);
    return 0;
}
