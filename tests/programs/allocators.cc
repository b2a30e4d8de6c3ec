// Calls what any allocator has; all numbers are known. With an argument, opens a library and calls its allocator by a name
// or a prefix besides: `allocators LIBRARY PREFIX`.
#include "keep.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <malloc.h>
#include <string>
#include <thread>
#include <vector>

// 1000 of malloc, of which 100 stay; 200 of calloc; 300 exchanges; 30 aligned; 50 of new and 60 of new[].
static NOINLINE void by_libcs_names() {
    std::vector<void *> all;
    all.reserve(1000);
    for (int i = 0; i < 1000; i++)
        all.push_back(keep(malloc(1000 + i)));
    for (int i = 0; i < 900; i++)
        free(all[i]);
    for (int i = 0; i < 200; i++)
        free(keep(calloc(3, 50)));
    char *grown = static_cast<char *>(keep(realloc(nullptr, 16)));
    for (int i = 1; i <= 300; i++)
        grown = static_cast<char *>(keep(realloc(grown, 16 + i * 100)));
    free(grown);
    for (int i = 0; i < 10; i++) {
        void *block;
        if (posix_memalign(&block, 64, 777) != 0)
            abort();
        free(keep(block));
        free(keep(aligned_alloc(128, 256)));
        free(keep(memalign(4096, 100)));
    }
    for (int i = 0; i < 50; i++)
        delete static_cast<std::string *>(keep(new std::string("short")));
    for (int i = 0; i < 60; i++)
        delete[] static_cast<int *>(keep(new int[100]));
}

static void in_threads() {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([] {
            for (int i = 0; i < 5000; i++)
                free(keep(malloc(4321)));
        });
    for (std::thread &thread : threads)
        thread.join();
}

// 500 of PREFIX_malloc, of which 400 are exchanged and all but 7 freed; 20 of PREFIX_calloc, 5 aligned.
static NOINLINE void by_prefix(void *library, const std::string &prefix) {
    auto find = [&](const char *name) {
        void *function = dlsym(library, (prefix + name).c_str());
        if (function == nullptr) {
            printf("no %s%s\n", prefix.c_str(), name);
            exit(1);
        }
        return function;
    };
    auto other_malloc = reinterpret_cast<void *(*)(size_t)>(find("malloc"));
    auto other_calloc = reinterpret_cast<void *(*)(size_t, size_t)>(find("calloc"));
    auto other_realloc = reinterpret_cast<void *(*)(void *, size_t)>(find("realloc"));
    auto other_free = reinterpret_cast<void (*)(void *)>(find("free"));
    auto other_aligned = reinterpret_cast<int (*)(void **, size_t, size_t)>(find("posix_memalign"));
    void *all[500];
    for (int i = 0; i < 500; i++)
        all[i] = keep(other_malloc(100));
    for (int i = 0; i < 400; i++)
        all[i] = keep(other_realloc(all[i], 10000));
    for (int i = 0; i < 493; i++)
        other_free(all[i]);
    for (int i = 0; i < 20; i++)
        other_free(keep(other_calloc(10, 11)));
    for (int i = 0; i < 5; i++) {
        void *block;
        if (other_aligned(&block, 256, 333) != 0)
            abort();
        other_free(keep(block));
    }
    other_free(nullptr);
}

int main(int argc, char **argv) {
    by_libcs_names();
    in_threads();
    if (argc > 2) {
        void *library = strcmp(argv[1], "-") == 0 ? RTLD_DEFAULT : dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr && strcmp(argv[1], "-") != 0) {
            puts(dlerror());
            return 1;
        }
        by_prefix(library, argv[2]);
    }
    puts("done");
    return 0;
}
