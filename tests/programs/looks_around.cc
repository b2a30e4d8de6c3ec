// Looks at its own stack at random moments and at each step of its own: a profiler in the program. Both must go on, and find main but
// where another's code has no unwind information.
#include "keep.h"
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <ucontext.h>
#include <unwind.h>

int main();

static volatile sig_atomic_t on, last;
static unsigned long looks, lost, steps;

static _Unwind_Reason_Code see(_Unwind_Context *context, void *found) {
    unsigned long from = reinterpret_cast<unsigned long>(&main);
    if (_Unwind_GetIP(context) - from < 2000) {
        *static_cast<bool *>(found) = true;
        return _URC_END_OF_STACK;
    }
    return _URC_NO_REASON;
}

static bool finds_main() {
    bool found = false;
    _Unwind_Backtrace(see, &found);
    return found;
}

static void tick(int) {
    if (!on)
        return;
    looks++;
    lost += !finds_main();
}

static void step(int, siginfo_t *, void *state) {
    steps++;
    finds_main();
    if (last)
        static_cast<ucontext_t *>(state)->uc_mcontext.gregs[REG_EFL] &= ~0x100;
}

static NOINLINE void use() {
    delete static_cast<int *>(keep(new int));
    delete[] static_cast<char *>(keep(new char[30]));
    std::free(keep(std::malloc(5)));
    operator delete(keep(::operator new(0)));
}

static NOINLINE void use_in_steps() {
    last = 0;
    asm volatile("sub $128, %%rsp; pushf; orl $0x100, (%%rsp); popf; add $128, %%rsp" ::: "memory", "cc");
    use();
    last = 1;
    asm volatile("nop; nop");
}

int main() {
    finds_main();
    struct sigaction action = {};
    action.sa_handler = tick;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    sigevent event = {};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGUSR1;
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    itimerspec often = {{0, 50'000}, {0, 50'000}};
    timer_settime(timer, 0, &often, nullptr);
    while (looks < 20'000) {
        on = 1;
        for (int i = 0; i < 100; i++)
            use();
        on = 0;
    }
    timer_delete(timer);

    static char alternate[1 << 18];
    stack_t stack = {};
    stack.ss_sp = alternate;
    stack.ss_size = sizeof alternate;
    sigaltstack(&stack, nullptr);
    action = {};
    action.sa_sigaction = step;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGTRAP, &action, nullptr);
    for (int i = 0; i < 3; i++)
        use_in_steps();
    std::puts(lost < looks / 20 && steps > 300 ? "done" : "lost");
}
