/* A library with a planted leak. The mark says which test line it is. */
#include "keep.h"
#include <stdlib.h>

NOINLINE void *library_leak(int n) {
    void *last = NULL;
    for (int i = 0; i < n; i++)
        last = keep(malloc(48)); /* LEAK library */
    return last;
}
