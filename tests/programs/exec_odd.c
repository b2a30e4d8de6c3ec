/* Executes argv[1], which can't be executed, and prints why. Waiting for it ends the program by SIGALRM. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    alarm(5);
    execv(argv[argc - 1], argv);
    printf("%s\n", strerror(errno));
    return 0;
}
