/* Hooks malloc and free of libc, counts their calls, and takes the hooks out again.
 *
 *     cc examples/count_malloc.c $(pkg-config --cflags --libs grapnel-hook)
 */
#include <grapnel_hook.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *(*original_malloc)(size_t);
static void (*original_free)(void *);
/* volatile: compilers take malloc and free for functions that change no variable of the program. */
static volatile size_t mallocs, frees;

static void *counting_malloc(size_t size)
{
    mallocs++;
    return original_malloc(size);
}

static void counting_free(void *block)
{
    frees++;
    original_free(block);
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
    void *malloc_at, *free_at;
    grapnel_hook *malloc_hook, *free_hook;
    unsigned char before[16];

    check(grapnel_find("libc.so", "malloc", &malloc_at, NULL));
    check(grapnel_find("libc.so", "free", &free_at, NULL));
    memcpy(before, malloc_at, sizeof before);

    /* By address; and what isn't exported, through the symbol table of this program's file. */
    char name[64];
    void *start, *own;
    check(grapnel_find_at((char *)malloc_at + 1, name, sizeof name, &start, NULL));
    if (start == malloc_at)
        printf("%s begins where it was found\n", name);
    check(grapnel_find(NULL, "counting_malloc", &own, NULL));
    if (own != (void *)counting_malloc)
        return 1;

    /* This program has one thread. */
    check(grapnel_replace(malloc_at, (void *)counting_malloc, GRAPNEL_SINGLE_THREADED, (void **)&original_malloc,
                          &malloc_hook));
    check(grapnel_replace(free_at, (void *)counting_free, GRAPNEL_SINGLE_THREADED, (void **)&original_free,
                          &free_hook));

    size_t mallocs_before = mallocs, frees_before = frees;
    for (int i = 0; i < 1000; i++) {
        char *volatile block = malloc(100);
        memset(block, 1, 100);
        free(block);
    }
    size_t mallocs_seen = mallocs - mallocs_before, frees_seen = frees - frees_before;

    check(grapnel_remove(malloc_hook, GRAPNEL_SINGLE_THREADED));
    check(grapnel_remove(free_hook, GRAPNEL_LIVE));
    int restored = memcmp(before, malloc_at, sizeof before) == 0;

    /* What can't be hooked says why. */
    static int data;
    grapnel_error *error = grapnel_replace(&data, (void *)counting_malloc, GRAPNEL_SINGLE_THREADED, NULL, NULL);
    if (!error)
        return 1;
    printf("refused: %s; %s\n", grapnel_error_message(error), grapnel_error_remedy(error));
    grapnel_error_free(error);
    error = grapnel_find("libc.so", "no_such_function", &malloc_at, NULL);
    if (!error)
        return 1;
    printf("refused: %s\n", grapnel_error_message(error));
    grapnel_error_free(error);

    printf("%zu mallocs, %zu frees, %s\n", mallocs_seen, frees_seen, restored ? "restored" : "not restored");
    return !(mallocs_seen == 1000 && frees_seen == 1000 && restored);
}
