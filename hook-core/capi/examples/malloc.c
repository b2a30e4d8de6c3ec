#include <grapnel_hook.h>
#include <stdio.h>
#include <stdlib.h>

static void *(*original)(size_t);
static volatile size_t calls;
static void *counting(size_t size) { calls++; return original(size); }

int main(void)
{
    grapnel_error *error =
        grapnel_replace((void *)malloc, (void *)counting, GRAPNEL_SINGLE_THREADED, (void **)&original, NULL);
    if (error)
        return fprintf(stderr, "%s; %s\n", grapnel_error_message(error), grapnel_error_remedy(error));
    for (int i = 0; i < 100; i++) {
        void *volatile block = malloc(i);
        free(block);
    }
    printf("%zu calls of malloc\n", calls);
}
