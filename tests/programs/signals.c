/* Signal handlers that allocate: by raise() outside of malloc, by a fault, on another stack, and by a timer
 * while the program computes (it blocks the signal around its own allocations, as malloc demands). */
#define _GNU_SOURCE
#include "keep.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

static volatile int handled;
static void *volatile page;

static void on_raise(int signal) {
    (void)signal;
    void *block = keep(malloc(321));
    block = keep(realloc(block, 654));
    free(block);
    handled++;
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
    free(keep(calloc(9, 9)));
    if (info->si_addr == page)
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
    handled++;
}

static volatile int ticks;

static void on_alarm(int signal) {
    (void)signal;
    if (ticks < 20) {
        free(keep(malloc(77)));
        ticks++;
    }
}

static void install(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_flags = flags};
    action.sa_handler = handler;
    sigaction(signal, &action, NULL);
}

int main(void) {
    install(SIGUSR1, on_raise, 0);
    for (int i = 0; i < 10; i++)
        raise(SIGUSR1);

    /* The same on a stack of 16 KiB that this program gives. */
    static char other[16384];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    sigaltstack(&stack, NULL);
    install(SIGUSR2, on_raise, SA_ONSTACK);
    for (int i = 0; i < 10; i++)
        raise(SIGUSR2);

    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction fault = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
    fault.sa_sigaction = on_fault;
    sigaction(SIGSEGV, &fault, NULL);
    *(volatile int *)page = 42;
    printf("handled %d, page %d\n", handled, *(volatile int *)page);

    install(SIGALRM, on_alarm, SA_RESTART);
    struct itimerval every = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, NULL);
    volatile unsigned long sum = 0;
    while (ticks < 20)
        for (int i = 0; i < 1000; i++)
            sum += (unsigned long)i;
    setitimer(ITIMER_REAL, &off, NULL);
    printf("ticks %d\n", ticks);

    /* The handlers are as this program set them. */
    struct sigaction now;
    for (int signal = 1; signal < NSIG; signal++)
        if (sigaction(signal, NULL, &now) == 0 && now.sa_handler != SIG_DFL)
            printf("signal %d flags %x\n", signal, now.sa_flags & ~0x04000000);
    return 0;
}
