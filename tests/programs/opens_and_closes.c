/* Three threads that open and close a library each, all the time, one of them in namespaces of its own with a libc that goes with it, until the input ends: "well" then, if none was ever missing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static volatile int is_over, is_wrong;

static void *opens(void *name) {
    while (!is_over) {
        void *library = dlopen(name, RTLD_NOW);
        if (!library || dlclose(library) != 0)
            is_wrong = 1;
    }
    return NULL;
}

static void *opens_elsewhere(void *name) {
    while (!is_over) {
        void *library = dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
        if (!library || dlclose(library) != 0)
            is_wrong = 1;
    }
    return NULL;
}

int main(void) {
    pthread_t threads[3];
    char *names[] = {"libstdc++.so.6", "libz.so.1"};
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, opens, names[i]);
    pthread_create(&threads[2], NULL, opens_elsewhere, "libz.so.1");
    puts("up");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    is_over = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    puts(is_wrong ? "wrong" : "well");
    return 0;
}
