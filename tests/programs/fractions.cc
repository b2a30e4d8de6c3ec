// Allocates with arithmetic that traps, in which any rounding ends the program, and looks whether anything was met that it asks for.
#include "keep.h"
#include <cstdio>
#include <cstdlib>
#include <fenv.h>

NOINLINE static void work(void) {
    for (int i = 0; i < 20000; i++) {
        void *block = keep(malloc(100 + i % 1000));
        block = keep(realloc(block, 200));
        free(block);
        free(keep(calloc(3, 70)));
    }
}

int main() {
    feclearexcept(FE_ALL_EXCEPT);
    work();
    int met = fetestexcept(FE_ALL_EXCEPT);
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(FE_ALL_EXCEPT);
    fesetround(FE_UPWARD);
    work();
    printf("%d met, round %d, traps %d\n", met, fegetround() == FE_UPWARD, fegetexcept() == FE_ALL_EXCEPT);
}
