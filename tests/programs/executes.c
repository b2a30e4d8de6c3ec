/* executes HOW PROGRAM ARGUMENTS...: executes the program in a way. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    const char *how = argv[1];
    char **arguments = argv + 2, *path = argv[2];
    char folder[4096], name[4096];
    snprintf(folder, sizeof folder, "%s", path);
    snprintf(name, sizeof name, "%s", path);
    if (strcmp(how, "execve") == 0)
        execve(path, arguments, environ);
    if (strcmp(how, "execvp") == 0)
        execvp(path, arguments);
    if (strcmp(how, "execveat") == 0)
        execveat(AT_FDCWD, path, arguments, environ, 0);
    if (strcmp(how, "folder") == 0)
        execveat(open(dirname(folder), O_RDONLY | O_DIRECTORY), basename(name), arguments, environ, 0);
    if (strcmp(how, "empty") == 0)
        execveat(open(path, O_RDONLY), "", arguments, environ, AT_EMPTY_PATH);
    if (strcmp(how, "path") == 0)
        execveat(open(path, O_PATH), "", arguments, environ, AT_EMPTY_PATH);
    if (strcmp(how, "fexecve") == 0)
        fexecve(open(path, O_RDONLY), arguments, environ);
    printf("%s\n", strerror(errno));
    return 9;
}
