/* Writes into argv[1] which of the three standard descriptors are closed, and the status of a write to stdout. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int closed[3];
    for (int fd = 0; fd < 3; fd++)
        closed[fd] = fcntl(fd, F_GETFD) < 0;
    FILE *file = fopen(argv[argc - 1], "w");
    if (!file)
        return 9;
    fprintf(file, "closed %d %d %d\n", closed[0], closed[1], closed[2]);
    fclose(file);
    return closed[0] + 2 * closed[1] + 4 * closed[2];
}
