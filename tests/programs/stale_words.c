/* Words on its stack look like part of a signal's frame, whose program counter is an address of the recorder's data, as what stood there before may leave them. It
 * looks for such an address in its mappings, and sleeps. x86-64. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    volatile unsigned long words[8] = {0};
    words[6] = 0x33;
    puts("at work");
    fflush(stdout);
    for (int i = 0; i < 600; i++) {
        FILE *maps = words[4] ? NULL : fopen("/proc/self/maps", "r");
        char line[512];
        while (maps && fgets(line, sizeof line, maps))
            if (strstr(line, "grapnel-session"))
                words[4] = strtoul(line, NULL, 16) + 64;
        if (maps)
            fclose(maps);
        usleep(50000);
    }
    return words[4] == 1;
}
