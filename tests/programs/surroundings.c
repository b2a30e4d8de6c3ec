/* Prints what a program can see of how it was started. argv[0] is not printed: the test gives it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        printf("argument %d [%s]\n", i, argv[i]);
    for (char **at = environ; *at; at++)
        printf("environment [%s]\n", *at);
    const char *preload = getenv("LD_PRELOAD");
    printf("LD_PRELOAD %s\n", preload ? preload : "is not set");
    for (int fd = 0; fd < 4096; fd++) {
        struct stat facts;
        if (fstat(fd, &facts) == 0)
            printf("descriptor %d type %o flags %o close-on-exec %d\n", fd, facts.st_mode & S_IFMT,
                   fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
    }
    int next = open("/dev/null", O_RDONLY);
    printf("next descriptor %d\n", next);
    char directory[4096];
    printf("directory %s\n", getcwd(directory, sizeof directory));
    mode_t mask = umask(0);
    printf("umask %o\n", mask);
    char name[17] = "";
    prctl(PR_GET_NAME, name);
    printf("name %s, dumpable %d, no_new_privs %d, subreaper %d\n", name, prctl(PR_GET_DUMPABLE),
           prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), prctl(PR_GET_CHILD_SUBREAPER, &(int){0}));
    int death = -1;
    prctl(PR_GET_PDEATHSIG, &death);
    printf("parent death signal %d\n", death);
    for (int which = 0; which < RLIM_NLIMITS; which++) {
        struct rlimit limit;
        if (getrlimit((enum __rlimit_resource)which, &limit) == 0)
            printf("limit %d %lld %lld\n", which, (long long)limit.rlim_cur, (long long)limit.rlim_max);
    }
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    for (int signal = 1; signal < NSIG; signal++) {
        struct sigaction action;
        if (sigismember(&blocked, signal) == 1)
            printf("blocked %d\n", signal);
        if (sigaction(signal, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
            printf("%s %d\n", action.sa_handler == SIG_IGN ? "ignored" : "handled", signal);
    }
    printf("group leader %d, session leader %d\n", getpgrp() == getpid(), getsid(0) == getpid());
    printf("priority %d\n", getpriority(PRIO_PROCESS, 0));
    return 0;
}
