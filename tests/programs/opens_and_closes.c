/* Two threads that open and close a library each, all the time, until the input ends: "well" then, if none was ever missing. */
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

int main(void) {
    pthread_t threads[2];
    char *names[] = {"libstdc++.so.6", "libz.so.1"};
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, opens, names[i]);
    puts("up");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    is_over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    puts(is_wrong ? "wrong" : "well");
    return 0;
}
