/* Reports a pool, and says by what handle; linked statically. */
#include "grapnel_heap.h"
#include <stdio.h>

int main(void) {
    grapnel_heap heap = grapnel_heap_create("none");
    grapnel_heap_alloc(heap, &heap, sizeof heap);
    grapnel_heap_free(heap, &heap);
    printf("%d %d\n", (int)heap, grapnel_heap_slot != NULL);
    return 0;
}
