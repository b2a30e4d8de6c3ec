/* Asks for programs with paths, arguments and environments that lead to no memory, and prints what the kernel says of each. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *const arguments[] = {"true", 0};
static char program[] = "/bin/true";

static void say(const char *what) { printf("%s: %s\n", what, strerror(errno)); }

static void all(const char *what, char *const *environment) {
    execve(program, arguments, environment);
    say(what);
    execveat(AT_FDCWD, program, arguments, environment, 0);
    say(what);
    int file = open(program, O_RDONLY);
    fexecve(file, arguments, environment);
    say(what);
    close(file);
}

int main(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *area = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(area + page, page);
    char *nowhere = (char *)(uintptr_t)4096, *wrong = (char *)(uintptr_t)0xdead000000000000;

    execve(nowhere, arguments, arguments);
    say("path");
    execve(wrong, arguments, arguments);
    say("path that no address is");
    memset(area + page - 8, 'x', 8);
    execve(area + page - 8, arguments, arguments);
    say("path without an end");
    execve(program, (char *const *)nowhere, arguments);
    say("arguments");

    all("environment", (char *const *)nowhere);
    all("environment that no address is", (char *const *)wrong);
    char *variables[] = {"A=B", nowhere, 0};
    all("variable", variables);
    variables[1] = wrong;
    all("variable that no address is", variables);
    variables[1] = area + page - 8;
    all("variable without an end", variables);
    char **endless = (char **)(void *)(area + page) - 3;
    for (int at = 0; at < 3; at++)
        endless[at] = "C=D";
    all("environment without an end", endless);
    return 0;
}
