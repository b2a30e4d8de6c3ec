// Calls functions with a stack pointer that isn't aligned as the ABI has it. What libc and libstdc++ do doesn't mind. x86-64.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sys/mman.h>

#ifdef __x86_64__

template <typename Function>
__attribute__((noinline)) static void *call(Function *function, size_t first = 0, size_t second = 0, size_t third = 0,
                                            size_t fourth = 0, size_t fifth = 0, size_t sixth = 0) {
    void *result;
    register size_t fourth_in asm("rcx") = fourth;
    register size_t fifth_in asm("r8") = fifth;
    register size_t sixth_in asm("r9") = sixth;
    asm volatile("mov %%rsp, %%rbx\n and $-16, %%rsp\n sub $136, %%rsp\n call *%%rax\n mov %%rbx, %%rsp"
                 : "=a"(result), "+D"(first), "+S"(second), "+d"(third), "+r"(fourth_in), "+r"(fifth_in), "+r"(sixth_in)
                 : "a"(function)
                 : "rbx", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "memory", "cc");
    return result;
}

static size_t number(void *pointer) { return reinterpret_cast<size_t>(pointer); }

int main() {
    void *(*by_new)(size_t) = operator new;
    void (*by_delete)(void *) = operator delete;
    for (int i = 0; i < 1000; i++) {
        void *block = call(malloc, 100);
        block = call(realloc, number(block), 5000);
        call(free, number(block));
        call(free, number(call(calloc, 10, 20)));
        call(free, number(call(aligned_alloc, 64, 128)));
        call(by_delete, number(call(by_new, 48)));
        void *page = call(mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, size_t(-1), 0);
        if (page == MAP_FAILED || call(munmap, number(page), 4096) != nullptr)
            return 1;
    }
    puts("done");
}

#else

int main() { puts("done"); }

#endif
