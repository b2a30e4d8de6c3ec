/* Every allocation function of libc with its edge cases. Prints what each call answered. */
#define _GNU_SOURCE
#include "keep.h"
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Removed from the headers, still in libc for old programs. */
extern void old_cfree(void *);
#if defined(__aarch64__)
__asm__(".symver old_cfree, cfree@GLIBC_2.17");
#elif defined(__arm__)
__asm__(".symver old_cfree, cfree@GLIBC_2.4");
#else
__asm__(".symver old_cfree, cfree@GLIBC_2.2.5");
#endif

static void say(const char *what, void *block) {
    int error = errno;
    printf("%s: %s errno %d\n", what, block ? "block" : "null", error);
    errno = 0;
}

int main(void) {
    void *volatile kept[40];
    int n = 0;
    errno = 0;

    /* malloc */
    say("malloc(100)", kept[n++] = malloc(100));
    say("malloc(0)", kept[n++] = malloc(0));
    say("malloc(1 MiB)", kept[n++] = malloc(1 << 20));
    free(NULL);
    free(kept[--n]);
    free(kept[--n]);

    /* calloc */
    say("calloc(10, 10)", kept[n++] = calloc(10, 10));
    say("calloc(0, 10)", kept[n++] = calloc(0, 10));
    say("calloc(10, 0)", kept[n++] = calloc(10, 0));
    say("calloc(1, 200000)", kept[n++] = calloc(1, 200000));
    old_cfree(kept[--n]);
    old_cfree(kept[--n]);
    old_cfree(NULL);

    /* realloc: from NULL, grow in place and moved, shrink, mapped, to nothing */
    void *volatile p = realloc(NULL, 40);
    say("realloc(NULL, 40)", p);
    memset(p, 7, 40);
    for (size_t size = 50; size < 2000000; size *= 3)
        p = realloc(p, size);
    say("grown", p);
    printf("content %d\n", ((char *)p)[39]);
    for (size_t size = 300000; size > 20; size /= 5)
        p = realloc(p, size);
    say("shrunk", p);
    say("realloc(p, 0)", realloc(p, 0));
    say("realloc(NULL, 0)", p = realloc(NULL, 0));
    p = realloc(p, 10);
    say("realloc(empty, 10)", p);
    free(p);

    /* reallocarray */
    p = reallocarray(NULL, 3, 7);
    say("reallocarray(NULL, 3, 7)", p);
    p = reallocarray(p, 1000, 7);
    say("reallocarray(p, 1000, 7)", p);
    say("reallocarray(p, 5, 0)", reallocarray(p, 5, 0));
    say("reallocarray(NULL, 0, 5)", p = reallocarray(NULL, 0, 5));
    free(p);

    /* the aligned family */
    for (size_t alignment = 8; alignment <= 65536; alignment *= 4) {
        void *out = NULL;
        int error = posix_memalign(&out, alignment, alignment / 2 + 3);
        printf("posix_memalign %zu: %d aligned %d\n", alignment, error, (uintptr_t)out % alignment == 0);
        kept[n++] = out;
    }
    for (size_t alignment = 1; alignment <= 4096; alignment *= 8) {
        p = memalign(alignment, 99);
        printf("memalign %zu aligned %d\n", alignment, (uintptr_t)p % alignment == 0);
        kept[n++] = p;
        p = aligned_alloc(alignment, alignment * 3);
        printf("aligned_alloc %zu aligned %d\n", alignment, (uintptr_t)p % alignment == 0);
        free(p);
    }
    errno = 0;
    say("memalign(48, 100)", kept[n++] = memalign(48, 100));
    say("aligned_alloc(64, 0)", kept[n++] = aligned_alloc(64, 0));
    say("valloc(10)", p = valloc(10));
    p = realloc(p, 9000);
    say("realloc of valloc", p);
    free(p);
    say("valloc(0)", kept[n++] = valloc(0));
    say("pvalloc(10)", p = pvalloc(10));
    free(p);
    say("pvalloc(0)", kept[n++] = pvalloc(0));
    say("pvalloc(5000)", kept[n++] = pvalloc(5000));

    /* libc's own callers */
    char *line = NULL;
    say("strdup", p = strdup("a string of a known length"));
    free(p);
    printf("asprintf %d\n", asprintf(&line, "%s %d", "formatted", 42));
    free(line);
    FILE *memory = open_memstream(&line, &(size_t){0});
    for (int i = 0; i < 1000; i++)
        fprintf(memory, "%d ", i);
    fclose(memory);
    printf("memstream %zu\n", strlen(line));
    free(line);

    /* half of what is kept is freed */
    for (int i = 0; i < n; i += 2)
        free(kept[i]);
    printf("kept %d\n", n);
    return 0;
}
