/* new and delete, by the names given, of a library that is opened late: 100 blocks of 1000 bytes, of which 50 are given back. */
#include <dlfcn.h>
#include <stdio.h>

static void *blocks[100];

int main(int argc, char **argv) {
    void *library = argc == 4 ? dlopen(argv[1], RTLD_NOW) : NULL;
    void *(*by_new)(unsigned long) = library ? dlsym(library, argv[2]) : NULL;
    void (*by_delete)(void *) = library ? dlsym(library, argv[3]) : NULL;
    if (!by_new || !by_delete)
        return 1;
    for (int i = 0; i < 100; i++)
        blocks[i] = by_new(1000);
    for (int i = 0; i < 50; i++)
        by_delete(blocks[i]);
    puts("done");
    return 0;
}
