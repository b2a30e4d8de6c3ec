// Recursion through functions that are chosen at random, by threads and by two coroutines in turn, down to a depth that is
// given: it returns, throws and jumps from anywhere in between, and allocates at every depth. How much, for each of them, is given too.
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <ucontext.h>
#include <vector>

struct Walk {
    unsigned long state;
    long left;
    int deepest;
    std::vector<void *> held;
    jmp_buf *top;

    unsigned long next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }

    void allocate() {
        unsigned long number = next();
        void *block = nullptr;
        switch (number % 4) {
        case 0: block = malloc(number % 300 + 1); break;
        case 1: block = calloc(3, number % 50 + 1); break;
        case 2: block = realloc(nullptr, number % 80 + 1); break;
        default: block = aligned_alloc(64, 64); break;
        }
        if (number % 3 == 0 && held.size() < 1000) held.push_back(block);
        else free(block);
        left--;
    }
};

typedef int (*Function)(Walk &, int);
extern const Function functions[5];

// What each function does: it calls others, allocates, and leaves in one of three ways.
static inline int body(Walk &walk, int depth) __attribute__((always_inline));
static inline int body(Walk &walk, int depth) {
    int count = 0;
    while (walk.left > 0) {
        unsigned long number = walk.next();
        if (number % 4 == 0) walk.allocate();
        else if (depth < walk.deepest && number % 16 < 13) count += functions[(number >> 8) % 5](walk, depth + 1);
        if (number % 10007 == 0) throw std::runtime_error("from below");
        if (number % 10007 == 1 && walk.top) longjmp(*walk.top, 1);
        if ((number >> 20) % 8 <= 2) break;
    }
    return count + 1;
}

#define NOINLINE __attribute__((noinline, noclone))

NOINLINE static int plain(Walk &walk, int depth) { return body(walk, depth); }

NOINLINE static int large(Walk &walk, int depth) {
    volatile char local[104];
    local[0] = 1;
    return body(walk, depth) + local[0];
}

NOINLINE static int variable(Walk &walk, int depth) {
    volatile char local[1 + walk.next() % 50];
    local[0] = 1;
    return body(walk, depth) + local[0];
}

NOINLINE static int passes(Walk &walk, int depth) {
    try {
        return body(walk, depth);
    } catch (int) {
        return 5;
    }
}

NOINLINE static int catches(Walk &walk, int depth) {
    if (walk.next() % 50 != 0) return body(walk, depth);
    try {
        return body(walk, depth);
    } catch (std::exception &) {
        walk.allocate();
        return 7;
    }
}

const Function functions[5] = {plain, large, variable, passes, catches};

static void walk(unsigned long seed, long left, int deepest) {
    Walk walk{seed, left, deepest, {}, nullptr};
    jmp_buf top;
    walk.top = &top;
    while (walk.left > 0) {
        if (setjmp(top) != 0) continue;
        try {
            plain(walk, 0);
        } catch (std::exception &) {
        }
    }
    for (void *block : walk.held) free(block);
}

static ucontext_t start, coroutines[2];
static long amount;
static int depth;

static void coroutine(int number) {
    Walk walk{number * 77ul + 5, amount, depth, {}, nullptr};
    while (walk.left > 0) {
        try {
            plain(walk, 0);
        } catch (std::exception &) {
        }
        swapcontext(&coroutines[number], &coroutines[1 - number]);
    }
    for (void *block : walk.held) free(block);
    swapcontext(&coroutines[number], &start);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    amount = atol(argv[1]);
    depth = atoi(argv[2]);
    std::vector<std::thread> threads;
    for (unsigned long seed = 7; seed < 70; seed += 31) threads.emplace_back(walk, seed, amount, depth);
    for (std::thread &thread : threads) thread.join();
    walk(12345, amount, depth);
    for (int number = 0; number < 2; number++) {
        const size_t size = 4 << 20;
        getcontext(&coroutines[number]);
        coroutines[number].uc_stack.ss_sp = malloc(size);
        coroutines[number].uc_stack.ss_size = size;
        makecontext(&coroutines[number], reinterpret_cast<void (*)()>(coroutine), 1, number);
    }
    swapcontext(&start, &coroutines[0]);
    puts("done");
}
