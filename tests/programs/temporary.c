/* Temporary allocations by number: freed before the next allocation of the same thread. */
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static NOINLINE void all_temporary(void) {
    for (int i = 0; i < 100; i++)
        free(keep(malloc(32))); /* SITE all: 100 of 100 */
}

static NOINLINE void none_temporary(void) {
    for (int i = 0; i < 50; i++) {
        void *outer = keep(malloc(64)); /* SITE outer: 0 of 50 */
        void *inner = keep(malloc(65)); /* SITE inner: 50 of 50 */
        free(inner);
        free(outer);
    }
}

static NOINLINE void half_temporary(void) {
    void *held[20];
    for (int i = 0; i < 40; i++) {
        void *block = keep(malloc(128)); /* SITE half: 20 of 40, and the last, which is the first to go below */
        if (i % 2)
            held[i / 2] = block;
        else
            free(block);
    }
    for (int i = 19; i >= 0; i--)
        free(held[i]);
}

static void *in_thread(void *argument) {
    for (int i = 0; i < 30; i++)
        free(keep(malloc(256))); /* SITE thread: 30 of 30 */
    return argument;
}

int main(void) {
    all_temporary();
    none_temporary();
    half_temporary();
    pthread_t thread;
    void *mine = keep(malloc(512)); /* SITE held: 0 of 1 */
    pthread_create(&thread, NULL, in_thread, NULL);
    pthread_join(thread, NULL);
    free(mine);
    printf("done\n");
    return 0;
}
