// Starts argv[2..] and kills it before or after one of the system calls by which its first thread does something to
// another process: argv[1] counts the moments. With more than there are it ends by itself. Says how many passed.
// With "all" before the number its children are killed too, first. With "halt" it isn't killed but stands at that moment,
// which is said, until a line is read; moments at which it reads another process's memory count as well.
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static void stop(char const *what) {
    perror(what);
    exit(2);
}

enum how { ALONE, ALL, HALT };

static int does_something(long number, enum how how) {
    return number == SYS_ptrace || number == SYS_write || number == SYS_pwrite64 ||
           (how == HALT && number == SYS_pread64);
}

/* The system call at which a thread stands, or -1. */
static long number_of(pid_t child) {
    struct user_regs_struct registers;
    struct iovec all = {&registers, sizeof registers};
    if (ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, &all) != 0)
        return -1;
#ifdef __aarch64__
    return (long)registers.regs[8];
#else
    return (long)registers.orig_rax;
#endif
}

static void kill_children(pid_t parent) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", parent, parent);
    FILE *children = fopen(path, "r");
    for (int child; children && fscanf(children, "%d", &child) == 1;)
        kill(child, SIGKILL);
    if (children)
        fclose(children);
}

static void reach(enum how how, pid_t child, long moment) {
    if (how == HALT) {
        printf("%ld\n", moment);
        fflush(stdout);
        for (int byte; (byte = getchar()) != '\n' && byte != EOF;)
            ;
        return;
    }
    if (how == ALL)
        kill_children(child);
    kill(child, SIGKILL);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    enum how const how = strncmp(argv[1], "all", 3) == 0 ? ALL : strncmp(argv[1], "halt", 4) == 0 ? HALT : ALONE;
    long const last = atol(argv[1] + (how == ALL ? 3 : how == HALT ? 4 : 0));
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
            if (does_something(number_of(child), how) && ++moments == last)
                reach(how, child, moments);
        }
        if (ptrace(PTRACE_SYSCALL, child, 0, signal) != 0 && errno != ESRCH)
            stop("ptrace");
    }
    printf("%ld\n", moments);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
