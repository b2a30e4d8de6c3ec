/* Starts argv[1..] with SIGPIPE and SIGUSR1 ignored, SIGUSR2 and SIGWINCH blocked, descriptor 7 open, a umask,
 * a niceness and a lower limit: what a program inherits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGWINCH);
    sigprocmask(SIG_SETMASK, &set, NULL);
    dup2(open("/dev/null", O_WRONLY | O_APPEND), 7);
    close(3);
    umask(037);
    setpriority(PRIO_PROCESS, 0, 3);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){200, 300});
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
}
