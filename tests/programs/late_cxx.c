/* A program in C that opens a library in C++, and with it libstdc++, from a thread; twice. argv[1] is the library. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *work(void *path) {
    for (int round = 0; round < 2; round++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            exit(3);
        }
        int (*plug)(int) = (int (*)(int))dlsym(library, "cxx_plug");
        printf("plug %d\n", plug(round));
        dlclose(library);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc < 2 || pthread_create(&thread, NULL, work, argv[1]) != 0)
        return 2;
    pthread_join(thread, NULL);
    return 0;
}
