/*
 * What the kernel starts for a program of another machine (binfmt_misc, with the flag P): QEMU, with that program.
 *
 * QEMU is a program of this machine. What the other's dynamic linker is to load (LD_PRELOAD) is therefore taken out of
 * QEMU's environment, whose own dynamic linker would complain about it, and put into that of the program. This here is
 * linked statically for the same reason.
 *
 * QEMU, its path, and ROOT, where the other machine's libraries are, are given by the compiler.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PRELOAD "LD_PRELOAD="

extern char **environ;

int main(int argc, char **argv) {
    if (argc < 3)
        return 125;
    /* QEMU, the root, the name, the variable, and what there is. */
    char **command = calloc((size_t)argc + 8, sizeof *command);
    if (!command)
        return 125;
    char **next = command;
    *next++ = QEMU;
    *next++ = "-L";
    *next++ = ROOT;
    *next++ = "-0";
    *next++ = argv[2];
    char **kept = environ, *preload = NULL;
    for (char **variable = environ; *variable; variable++) {
        if (strncmp(*variable, PRELOAD, strlen(PRELOAD)) == 0)
            preload = *variable;
        else
            *kept++ = *variable;
    }
    *kept = NULL;
    if (preload) {
        *next++ = "-E";
        *next++ = preload;
    }
    *next++ = argv[1];
    for (int at = 3; at < argc; at++)
        *next++ = argv[at];
    execv(QEMU, command);
    perror(QEMU);
    return 126;
}
