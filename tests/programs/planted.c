/* Plants symbolic links to argv[2] where the traces of the next processes are due (argv[1] up to the pid, argv[3]
   after it), then starts one. Prints its pid, and whether a link was there for it. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    enum { AHEAD = 3000 };
    if (argc < 4)
        return 2;
    int own = getpid();
    for (int pid = own + 1; pid <= own + AHEAD; pid++) {
        char path[4200];
        snprintf(path, sizeof path, "%s%d%s", argv[1], pid, argv[3]);
        if (symlink(argv[2], path) != 0 && access(path, F_OK) != 0)
            return 3;
    }
    int status = -1, pid = fork();
    if (pid == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    waitpid(pid, &status, 0);
    printf("%d %d %d\n", pid, pid > own && pid <= own + AHEAD, status);
    return 0;
}
