/* Prints the first bytes of functions that a recorder may change, as they are now. */
#define _GNU_SOURCE
#include "keep.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    const char *names[] = {"malloc", "calloc", "realloc", "free", "posix_memalign", "memalign", "aligned_alloc", "valloc",
                           "pvalloc", "execve", "execveat", "fexecve", "mmap", "munmap", "mremap", "brk", "sbrk",
                           "_dl_debug_state", "longjmp", "__longjmp_chk"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const unsigned char *code = dlsym(RTLD_DEFAULT, names[i]);
        printf("%s", names[i]);
        for (int at = 0; code && at < 32; at++)
            printf(" %02x", code[at]);
        printf("\n");
    }
    for (int i = 0; i < 1000; i++)
        free(keep(malloc(100)));
    char *variable = getenv("LD_PRELOAD");
    printf("%s %d\n", variable ? variable : "none", getenv("GRAPNEL_SESSION") != NULL);
    return 7;
}
