/* Marks moments of its own, pauses its recording, and asks for a snapshot. */
#include "grapnel_heap.h"
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>

static void allocate(int number) {
    for (int n = 0; n < number; n++)
        keep(malloc(54321));
}

int main(void) {
    allocate(10);
    grapnel_mark("first");
    allocate(20);
    grapnel_snapshot();
    grapnel_mark("second");
    grapnel_pause();
    allocate(30);
    grapnel_resume();
    allocate(40);
    puts("done");
    return 0;
}
