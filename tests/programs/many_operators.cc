// Opens each library that it is told, all of which have operators of their own, and gives back what each made in each way that is
// right.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW);
        if (!library) {
            std::puts(dlerror());
            return 1;
        }
        auto make = reinterpret_cast<int *(*)()>(dlsym(library, "make"));
        auto unmake = reinterpret_cast<void (*)(int *)>(dlsym(library, "unmake"));
        unmake(make());
        delete make();
        unmake(static_cast<int *>(keep(new int)));
    }
    std::puts("done");
}
