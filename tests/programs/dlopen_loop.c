/* Opens and closes two libraries in turn, so that they come to lie where the other was. They allocate in their
 * constructors and in a function; what the function makes outlives them. argv[1] and argv[2] are the libraries. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 40 };
static void *left[2 * ROUNDS];

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    int made = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int which = 0; which < 2; which++) {
            void *library = dlopen(argv[1 + which], RTLD_NOW | RTLD_LOCAL);
            if (!library) {
                fprintf(stderr, "%s\n", dlerror());
                return 3;
            }
            void *(*make)(int) = (void *(*)(int))dlsym(library, which == 0 ? "plug_make_a" : "plug_make_b");
            left[made] = make(1000 + which);
            made += left[made] != NULL;
            dlclose(library);
        }
    }
    for (int i = 0; i < made; i += 4)
        free(left[i]);
    printf("made %d\n", made);
    printf("missing %d\n", dlopen("/nowhere/libnothing.so", RTLD_NOW) == NULL);
    return 0;
}
