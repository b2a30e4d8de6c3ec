/* Alone it prints its environment as it is and allocates 57 blocks. With arguments it executes them in an
   environment that the functions of libc would not make: two of a name, and entries that are no assignments. The
   first two arguments are libraries for LD_PRELOAD; the first may be empty for one LD_PRELOAD only. */
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    if (argc > 3) {
        char first[4200], second[4200];
        snprintf(first, sizeof first, "%s%s", *argv[1] ? "LD_PRELOAD=" : "B", argv[1]);
        snprintf(second, sizeof second, "LD_PRELOAD=%s", argv[2]);
        char *odd[] = {"NOEQUALS", first, "A=1", "=", "", second, "A=2", NULL};
        execve(argv[3], argv + 3, odd);
        return 9;
    }
    for (int i = 0; i < 57; i++)
        keep(malloc(5));
    for (char **at = environ; *at; at++)
        printf("[%s]\n", *at);
    return 0;
}
