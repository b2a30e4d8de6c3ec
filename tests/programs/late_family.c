/* Opens the library argv[1] when it is told, and has it work. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {
        void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
        int (*work)(void) = library ? (int (*)(void))dlsym(library, "work") : NULL;
        if (!work)
            return 3;
        printf("%d caught\n", work());
        fflush(stdout);
    }
    return 0;
}
