/* A block that main forgets at once: nothing leads to it but what calls of before left on the stack. */
#include "keep.h"
#include <stdlib.h>
#include <string.h>

int main(void)
{
    char *volatile block = malloc(1000); /* LOST */
    memset(block, 1, 1000);
    keep(block);
    block = NULL;
    return 0;
}
