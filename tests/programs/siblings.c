/* Children that all do the same, in turn: siblings fork | raw | exec. By libc's fork, by the system call, or executed anew. */
#include "keep.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int child(void) {
    for (int i = 0; i < 5000; i++) {
        free(keep(malloc(1 + (i * 7919) % 2000)));
    }
    return 0;
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "fork";
    if (strcmp(way, "child") == 0) {
        return child();
    }
    for (int i = 0; i < 3000; i++) {
        free(keep(malloc(1000)));
    }
    for (int i = 0; i < 12; i++) {
        pid_t pid = strcmp(way, "raw") == 0 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        if (pid == 0) {
            if (strcmp(way, "exec") == 0) {
                execl("/proc/self/exe", arguments[0], "child", NULL);
            }
            _exit(child());
        }
        waitpid(pid, NULL, 0);
    }
    puts("done");
    return 0;
}
