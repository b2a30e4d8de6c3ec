/* A daemon: forks twice, allocates 500 blocks a while after its parents have ended, and prints. */
#include "keep.h"
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    if (fork() != 0)
        _exit(0);
    setsid();
    if (fork() != 0)
        _exit(0);
    usleep(200000);
    for (int i = 0; i < 500; i++)
        keep(malloc(5));
    return write(1, "daemon\n", 7) == 7 ? 0 : 1;
}
