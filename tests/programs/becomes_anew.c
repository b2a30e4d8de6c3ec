// Another thread than the first makes the process a new program, this one, every few milliseconds.
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static char **arguments;

static void *become(void *unused) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct timespec const time = {0, now.tv_nsec % 5000000};
    nanosleep(&time, NULL);
    execv("/proc/self/exe", arguments);
    return unused;
}

int main(int argc, char **argv) {
    (void)argc;
    arguments = argv;
    pthread_t thread;
    if (pthread_create(&thread, NULL, become, NULL))
        return 1;
    pthread_join(thread, NULL);
    return 2;
}
