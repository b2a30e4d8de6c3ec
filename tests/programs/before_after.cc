// Allocations before main and after it: constructors, statics, atexit, destructors, thread_local destructors.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

static std::vector<std::string> before_main(50, std::string(100, 'b'));

__attribute__((constructor(101))) static void very_early() {
    std::free(keep(std::malloc(111)));
    keep(std::malloc(222));
}

__attribute__((destructor(101))) static void very_late() {
    std::free(keep(std::malloc(333)));
    keep(std::malloc(444));
}

struct PerThread {
    std::string text = std::string(300, 't');
    ~PerThread() {
        std::free(keep(std::malloc(55)));
        text.assign(1000, 'u');
    }
};

static thread_local PerThread per_thread;

struct Last {
    ~Last() {
        for (int i = 0; i < 10; i++)
            keep(std::malloc(66));
        before_main.clear();
        std::puts("static destroyed");
    }
} last;

int main() {
    std::atexit([] {
        std::free(keep(std::malloc(77)));
        std::puts("atexit");
    });
    std::at_quick_exit([] { std::puts("not called"); });
    for (int i = 0; i < 5; i++)
        std::thread([] { per_thread.text += "more"; }).join();
    std::printf("main %zu\n", per_thread.text.size());
}
