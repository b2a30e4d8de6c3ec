// Its first thread makes others without a pause, until its input ends.
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *nothing(void *unused) {
    return unused;
}

int main(void) {
    puts("ready");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    long made = 0;
    for (; poll(&input, 1, 0) == 0; ++made) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL))
            abort();
    }
    puts(made > 0 ? "well" : "none");
    return 0;
}
