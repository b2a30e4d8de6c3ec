/* Threads that take blocks and give them back as fast as they can, and never lose one: each is held by a variable, by a
 * block that a variable holds, or for a moment by a register. Until the end of the input. */
#include "keep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 4, SLOTS = 500 };

struct node {
    struct node *next;
    void *volatile block;
};

static struct node *volatile lists[THREADS];
static volatile int over;

static void *churn(void *argument) {
    struct node *volatile *list = argument;
    unsigned random = 1;
    for (int i = 0; i < SLOTS; i++) {
        struct node *node = malloc(sizeof *node);
        node->block = malloc(20);
        node->next = *list;
        *list = node;
    }
    while (!over) {
        for (struct node *node = *list; node; node = node->next) {
            random = random * 1103515245 + 12345;
            void *old = node->block;
            node->block = keep(malloc(random >> 16 & 1023));
            free(old);
        }
        /* Whoever records this reads it back for each look. */
        usleep(10000);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, churn, (void *)&lists[i]);
    while (getchar() != EOF)
        ;
    over = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("done\n");
    return 0;
}
