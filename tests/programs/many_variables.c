/* Starts argv[1] two hundred times by posix_spawn with 3,000 variables. Prints by how many KiB its memory grew. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static long data_kib(void) {
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "VmData:", 7) == 0)
            kib = atol(line + 7);
    if (file)
        fclose(file);
    return kib;
}

int main(int argc, char **argv) {
    static char texts[3000][16], *variables[3001];
    for (int i = 0; i < 3000; i++) {
        snprintf(texts[i], sizeof texts[i], "V%d=x", i);
        variables[i] = texts[i];
    }
    long before = 0;
    for (int i = 0; i < 200; i++) {
        pid_t pid;
        int status = -1;
        char *arguments[] = {argv[argc - 1], NULL};
        if (posix_spawn(&pid, arguments[0], NULL, NULL, arguments, variables) != 0)
            return 1;
        if (waitpid(pid, &status, 0) != pid || status != 0)
            return 2;
        if (i == 20)
            before = data_kib();
    }
    printf("%ld\n", data_kib() - before);
    return 0;
}
