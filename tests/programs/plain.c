/* The smallest thing that can be started; the tests link it statically too. */
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    void *volatile block = malloc(10);
    printf("plain %d\n", block != NULL);
    return 0;
}
