/* Restarts itself as argv[2...] from a handler that runs on an alternate stack of argv[1] bytes, as crash reporters do. */
#define _GNU_SOURCE
#include "keep.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static char **restart;

static void handle(int signal) {
    (void)signal;
    execv(restart[0], restart);
    _exit(9);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    size_t size = (size_t)atol(argv[1]), guard = 1 << 20;
    char *stack = mmap(NULL, guard + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(stack, guard, PROT_NONE);
    if (sigaltstack(&(stack_t){.ss_sp = stack + guard, .ss_size = size}, NULL) != 0)
        return 3;
    restart = argv + 2;
    sigaction(SIGSEGV, &(struct sigaction){.sa_handler = handle, .sa_flags = SA_ONSTACK}, NULL);
    free(keep(malloc(10)));
    *(volatile char *)stack = 1;
    return 0;
}
