/* Destroys what it shares with grapnel: the memory whose mapping is called grapnel-session. What, says argv[1]; where, argv[2]. */
#define _GNU_SOURCE
#include "keep.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t state = 7;

static uint32_t next_number(void) {
    return state = state * 1103515245 + 12345;
}

static long allocated;

static void *allocate(void *argument) {
    for (int i = 0; i < 1000000; i++) {
        free(keep(malloc(16)));
        __atomic_add_fetch(&allocated, 1, __ATOMIC_RELAXED);
    }
    return argument;
}

/* Stops grapnel until a thread waits for room in the second ring, whose control is here, and turns its count of words back. */
static void turn_back(uint64_t *control) {
    enum { TAIL = 0, HEAD = 8 };
    pthread_t thread;
    long before = -1;
    kill(getppid(), SIGSTOP);
    pthread_create(&thread, NULL, allocate, NULL);
    for (long now; (now = __atomic_load_n(&allocated, __ATOMIC_RELAXED)) != before || now == 0; before = now)
        usleep(300000);
    __atomic_store_n(&control[TAIL], control[HEAD] - 1, __ATOMIC_RELEASE);
    kill(getppid(), SIGCONT);
    pthread_join(thread, NULL);
    printf("stood at %s, came to %ld\n", before < 1000000 ? "less" : "all", allocated);
}

/* Cuts grapnel's own descriptor of the session to nothing; prints why it can't. */
static void truncate_session(void) {
    int tried = 0, cut = 0, refused = 0;
    for (int i = 3; i < 64; i++) {
        char path[64], name[200] = "";
        snprintf(path, sizeof path, "/proc/%d/fd/%d", getppid(), i);
        if (readlink(path, name, sizeof name - 1) < 0 || !strstr(name, "grapnel-session"))
            continue;
        int fd = open(path, O_RDWR);
        if (fd < 0)
            continue;
        tried++;
        cut += ftruncate(fd, 0) == 0;
        refused += errno == EPERM;
        close(fd);
    }
    printf("tried %d cut %d refused %d\n", tried > 0, cut, refused > 0);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    for (int i = 0; i < 1000; i++)
        keep(malloc((size_t)i));
    if (strcmp(what, "truncate") == 0) {
        truncate_session();
        for (int i = 0; i < 1000; i++)
            keep(malloc((size_t)i));
        return 0;
    }
    uint32_t *header = NULL;
    unsigned char *segment = NULL;
    size_t header_size = 0, segment_size = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[600];
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to, offset;
        if (!strstr(line, "grapnel-session") || sscanf(line, "%lx-%lx %*s %lx", &from, &to, &offset) != 3)
            continue;
        if (offset == 0 && !header) {
            header = (uint32_t *)from;
            header_size = to - from;
        } else if (!segment) {
            segment = (unsigned char *)from;
            segment_size = to - from;
        }
    }
    if (!header || !segment) {
        printf("no session\n");
        return 3;
    }
    printf("vandal\n");
    fflush(stdout);
    if (strcmp(what, "next") == 0) {
        header[7] = header[6];
    } else if (strcmp(what, "limit") == 0) {
        header[6] = 0xffffffff;
        header[7] = 0xfffffff0;
    } else if (strcmp(what, "noise") == 0) {
        for (size_t i = 0; i < header_size / 4; i++)
            header[i] = next_number();
    } else if (strcmp(what, "ones") == 0) {
        memset(header + 4, 0xff, header_size - 16);
    } else if (strcmp(what, "rings") == 0) {
        size_t most = segment_size < (1 << 20) ? segment_size : 1 << 20;
        for (size_t i = 0; i < most; i++)
            segment[i] = (unsigned char)(next_number() >> 16);
    } else if (strcmp(what, "zeros") == 0) {
        memset(segment, 0, segment_size < (1 << 20) ? segment_size : 1 << 20);
    } else if (strcmp(what, "ticks") == 0) {
        /* From the first ring on every word is the end of time. */
        size_t most = segment_size < (8 << 20) ? segment_size : 8 << 20;
        for (size_t i = 64 << 10; i + 8 <= most; i += 8)
            memset(segment + i, 0xff, 8);
    } else if (strcmp(what, "tail") == 0 && argc > 2) {
        turn_back((uint64_t *)(segment + atol(argv[2])));
    } else {
        return 4;
    }
    fflush(stdout);
    usleep(200000);
    _exit(0);
}
