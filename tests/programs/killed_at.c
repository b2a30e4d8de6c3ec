// Starts argv[2..] and kills it before or after one of the system calls by which its first thread does something to
// another process: argv[1] counts the moments. With more than there are it ends by itself. Says how many passed.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static void stop(char const *what) {
    perror(what);
    exit(2);
}

static int does_something(long number) {
    return number == SYS_ptrace || number == SYS_write || number == SYS_pwrite64;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    long const last = atol(argv[1]);
    pid_t const child = fork();
    if (child == -1)
        stop("fork");
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execv(argv[2], argv + 2);
        stop(argv[2]);
    }
    long moments = 0;
    int status = 0;
    for (int begun = 0; waitpid(child, &status, 0) == child && WIFSTOPPED(status);) {
        long signal = WSTOPSIG(status);
        if (!begun) {
            begun = 1;
            signal = 0;
            ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
        } else if (signal == (SIGTRAP | 0x80)) {
            signal = 0;
            struct user_regs_struct registers;
            if (ptrace(PTRACE_GETREGS, child, 0, &registers) == 0 && does_something((long)registers.orig_rax) &&
                ++moments == last)
                kill(child, SIGKILL);
        }
        if (ptrace(PTRACE_SYSCALL, child, 0, signal) != 0 && errno != ESRCH)
            stop("ptrace");
    }
    printf("%ld\n", moments);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
