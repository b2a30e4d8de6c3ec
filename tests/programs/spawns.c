/* Starts itself again in every way that libc has. A started one makes as many allocations as its argument
 * says, so that each process can be told by its count. */
#define _GNU_SOURCE
#include "keep.h"
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0)
        abort();
}

static void reap(const char *what, pid_t child) {
    int status = 0;
    char line[80];
    waitpid(child, &status, 0);
    snprintf(line, sizeof line, "%s: %d\n", what, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    say(line);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        int count = atoi(argv[1]);
        for (int i = 0; i < count; i++)
            keep(malloc(7));
        if (argc > 2) {
            /* The same pid becomes another program. */
            execl(argv[0], argv[0], argv[2], (char *)NULL);
            return 99;
        }
        return count % 100;
    }
    char *self = argv[0];
    pid_t child;

#define START(name, call)             \
    do {                              \
        child = fork();               \
        if (child == 0) {             \
            call;                     \
            _exit(98);                \
        }                             \
        reap(name, child);            \
    } while (0)

    START("execv", execv(self, (char *[]){self, "101", NULL}));
    START("execve", execve(self, (char *[]){self, "102", NULL}, environ));
    START("execl", execl(self, self, "103", (char *)NULL));
    START("execle", execle(self, self, "104", (char *)NULL, environ));
    START("execvp", execvp(self, (char *[]){self, "105", NULL}));
    START("execlp", execlp(self, self, "106", (char *)NULL));
    START("execvpe", execvpe(self, (char *[]){self, "107", NULL}, environ));
    START("fexecve", fexecve(open(self, O_RDONLY | O_CLOEXEC), (char *[]){self, "108", NULL}, environ));
    START("execveat", execveat(AT_FDCWD, self, (char *[]){self, "109", NULL}, environ, 0));
    START("empty environment", execve(self, (char *[]){self, "110", NULL}, (char *[]){NULL}));
    START("exec twice", execl(self, self, "111", "112", (char *)NULL));
    START("failed exec", execl("/nowhere/at/all", "x", (char *)NULL));

    child = vfork();
    if (child == 0) {
        execl(self, self, "113", (char *)NULL);
        _exit(98);
    }
    reap("vfork", child);
    child = vfork();
    if (child == 0) {
        execl("/nowhere/at/all", "x", (char *)NULL);
        _exit(97);
    }
    reap("vfork failed exec", child);

    if (posix_spawn(&child, self, NULL, NULL, (char *[]){self, "114", NULL}, environ) != 0)
        return 1;
    reap("posix_spawn", child);
    if (posix_spawnp(&child, self, NULL, NULL, (char *[]){self, "115", NULL}, environ) != 0)
        return 1;
    reap("posix_spawnp", child);
    printf("posix_spawn of nothing: %d\n", posix_spawn(&child, "/nowhere/at/all", NULL, NULL, argv, environ) == ENOENT);
    fflush(stdout);

    char command[5000];
    snprintf(command, sizeof command, "exec '%s' 116", self);
    printf("system: %d\n", WEXITSTATUS(system(command)));
    snprintf(command, sizeof command, "exec '%s' 117", self);
    fflush(stdout);
    FILE *pipe = popen(command, "r");
    printf("popen: %d\n", WEXITSTATUS(pclose(pipe)));
    return 0;
}
