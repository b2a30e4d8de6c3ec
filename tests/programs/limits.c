/* A program that narrows its own world: no descriptors, little address space, another directory. */
#define _GNU_SOURCE
#include "keep.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static long pages_used(void) {
    char text[100] = "";
    int fd = open("/proc/self/statm", O_RDONLY);
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got > 0 ? atol(text) : 0;
}

static void *work(void *argument) {
    for (int i = 0; i < 1000; i++)
        free(keep(malloc(100)));
    return argument;
}

int main(void) {
    for (int i = 0; i < 100; i++)
        keep(malloc(100));
    if (chdir("/") != 0)
        return 1;
    long used = pages_used();
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0});
    int refused = open("/dev/null", O_RDONLY);
    printf("open %d %d\n", refused, errno == EMFILE);
    rlim_t most = (rlim_t)used * 4096 + (400u << 20);
    setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
    volatile size_t big = 600u << 20;
    printf("too big %d\n", malloc(big) == NULL);
    for (int i = 0; i < 20000; i++)
        keep(malloc((size_t)(i % 50 + 1)));
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    for (int i = 0; i < 10; i++) {
        if (pthread_create(&thread, &attributes, work, NULL) != 0)
            return 2;
        pthread_join(thread, NULL);
    }
    printf("done\n");
    return 0;
}
