/* Opens deep_bound (argv[1]) with RTLD_DEEPBIND and calls it. */
#include "keep.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    void (*work)(void) = (void (*)(void))dlsym(library, "deep_work");
    work();
    /* Higher than all before: the peak is here. */
    void *high = keep(malloc(1 << 20));
    free(high);
    printf("done\n");
    return 0;
}
