/* Opens and closes libraries, in the program's namespace and in new ones, while other threads allocate. argv[1] times each. */
#define _GNU_SOURCE
#include "keep.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static volatile int is_over;

static void *allocates(void *unused) {
    while (!is_over)
        free(keep(malloc(100)));
    return unused;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 10;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, allocates, NULL);
    /* The larger its tables, the longer the linker is at them. */
    const char *names[] = {"libxml2.so.2", "libz.so.1"};
    void *large = dlopen(names[0], RTLD_LAZY);
    if (large)
        dlclose(large);
    else
        names[0] = "libstdc++.so.6";
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 2; i++) {
            void *here = dlopen(names[i], RTLD_NOW);
            void *elsewhere = dlmopen(LM_ID_NEWLM, "libz.so.1", RTLD_NOW);
            if (!here || !elsewhere) {
                puts(dlerror());
                return 1;
            }
            dlclose(elsewhere);
            dlclose(here);
        }
    }
    is_over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
