/* Leaks at known lines and only there. Each such line is marked with LEAK and a name; the test reads the marks
 * from this file. Everything else is freed, stdout's buffer included. argv[1] is the library. */
#define _GNU_SOURCE
#include "keep.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct list {
    struct list *next;
    char text[40];
};

static inline __attribute__((always_inline)) void *inlined_leak(size_t size) {
    return keep(calloc(1, size)); /* LEAK inlined */
}

static inline __attribute__((always_inline)) void *inlined_twice(size_t size) {
    return inlined_leak(size);
}

static NOINLINE void *grown_leak(void) {
    void *block = keep(malloc(10));
    for (size_t size = 20; size < 100; size += 20)
        block = keep(realloc(block, size)); /* LEAK grown */
    return block;
}

static NOINLINE struct list *prepend(struct list *head) {
    struct list *node = malloc(sizeof *node); /* LEAK list */
    node->next = head;
    strcpy(node->text, "node");
    return keep(node);
}

static NOINLINE char *copied_leak(const char *text) {
    return keep(strdup(text)); /* LEAK copied */
}

static NOINLINE void *aligned_leak(void) {
    void *block = NULL;
    int error = posix_memalign(&block, 256, 300); /* LEAK aligned */
    return error ? NULL : keep(block);
}

static NOINLINE void *clean(int n) {
    void *blocks[10];
    for (int i = 0; i < 10; i++)
        blocks[i] = keep(malloc((size_t)n * 10 + 1));
    for (int i = 0; i < 10; i++)
        free(blocks[i]);
    return NULL;
}

static void *in_thread(void *argument) {
    void *block = keep(malloc(77)); /* LEAK thread */
    free(keep(malloc(78)));
    return argument ? argument : block;
}

int main(int argc, char **argv) {
    static char buffer[4096];
    if (argc < 2)
        return 2;
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    struct list *head = NULL;
    for (int i = 0; i < 25; i++) {
        inlined_twice(64);
        head = prepend(head);
        clean(i);
    }
    for (int i = 0; i < 5; i++) {
        struct list *rest = head->next;
        free(head);
        head = rest;
    }
    keep(head);
    for (int i = 0; i < 4; i++)
        grown_leak();
    copied_leak("twenty characters ..");
    aligned_leak();
    pthread_t thread;
    pthread_create(&thread, NULL, in_thread, NULL);
    pthread_join(thread, NULL);
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    void *(*leak)(int) = (void *(*)(int))dlsym(library, "library_leak");
    leak(6);
    dlclose(library);
    printf("leaked\n");
    return 0;
}
