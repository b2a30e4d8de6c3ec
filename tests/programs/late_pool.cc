// Opens a library that has operators of its own, after blocks were got by those of libstdc++. argv[1] is the library.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#include "keep.h"
#include <cstdio>
#include <dlfcn.h>
#include <new>

int main(int count, char **names) {
    void *wrong = keep(operator new[](16)), *right = keep(operator new[](16)); // BEFORE
    void *library = count > 1 ? dlopen(names[1], RTLD_NOW) : nullptr;
    if (!library) {
        std::puts(dlerror());
        return 1;
    }
    reinterpret_cast<void (*)()>(dlsym(library, "run"))();
    operator delete(wrong);
    operator delete[](right);
    operator delete(keep(operator new(16)));
    std::puts("done");
}
