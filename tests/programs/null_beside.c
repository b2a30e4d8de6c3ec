/* Blocks at multiples of 4 GiB, where tables that go by the lower half of an address begin; and each time nothing is given
 * back before the block is. */
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    for (int i = 0; i < 20; i++) {
        void *block = NULL;
        void *volatile nothing = NULL;
        if (posix_memalign(&block, (size_t)1 << 32, 1 << 20) != 0)
            return 1;
        free(nothing);
        free(realloc(nothing, 100));
        free(block);
    }
    puts("done");
    return 0;
}
