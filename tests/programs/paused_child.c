/* A child pauses its recording, and another one goes on with its own, which is not their parent's. They do nothing before that is recorded.
   Of the arguments, `early` has them made by _Fork, which runs no handlers of fork's. */
#define _GNU_SOURCE
#include "grapnel_heap.h"
#include "keep.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void allocate(int number, size_t size) {
    for (int n = 0; n < number; n++)
        keep(malloc(size));
}

static pid_t (*forking)(void) = fork;

static void in_child(void (*change)(void), int number) {
    int status;
    pid_t child = forking();
    if (child == 0) {
        change();
        allocate(number, 12345);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        exit(1);
}

static void pauses(void) {
    grapnel_pause();
}

static void resumes(void) {
    grapnel_resume();
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1)
        forking = _Fork;
    allocate(10, 54321);
    in_child(pauses, 1000);
    allocate(20, 54321);
    grapnel_pause();
    in_child(resumes, 5);
    allocate(400, 54321);
    grapnel_resume();
    allocate(3, 54321);
    puts("done");
    return 0;
}
