/*
 * Opens the two libraries of its arguments in turn, has each make a block, and closes it, while other threads allocate; and forks
 * children that look at the list of loaded libraries. Prints how many children ended as they should.
 */
#define _GNU_SOURCE
#include "keep.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, ROUNDS = 150, CHILDREN = 30 };

static volatile int over;

static void *allocate(void *unused) {
    while (!over)
        free(keep(malloc(64)));
    return unused;
}

static int count(struct dl_phdr_info *info, size_t size, void *counted) {
    (void)info;
    (void)size;
    ++*(int *)counted;
    return 0;
}

static int child_ends(const char *library) {
    pid_t child = fork();
    if (child == 0) {
        int counted = 0;
        alarm(20);
        free(keep(malloc(100)));
        dl_iterate_phdr(count, &counted);
        void *handle = dlopen(library, RTLD_NOW);
        _exit(handle && !dlclose(handle) && counted ? 42 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 42;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    pthread_t threads[THREADS];
    int children = 0;
    for (int at = 0; at < THREADS; at++)
        pthread_create(&threads[at], 0, allocate, 0);
    for (int round = 0; round < ROUNDS; round++) {
        int which = round % 2;
        const char *library = argv[1 + which];
        void *handle = dlopen(library, round % 3 ? RTLD_NOW : RTLD_LAZY);
        void *(*make)(int) = handle ? (void *(*)(int))dlsym(handle, which ? "plug_make_b" : "plug_make_a") : 0;
        if (!make)
            return 1;
        free(make(1000 + which));
        dlclose(handle);
        if (round % (ROUNDS / CHILDREN) == 0)
            children += child_ends(library);
    }
    over = 1;
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], 0);
    printf("%d\n", children);
    return 0;
}
