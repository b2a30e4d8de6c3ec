/* Preloaded: when the process ends, what the kernel says of it, its peak of memory among it, goes to a file of its id in
 * $PEAK_DIR. Allocates nothing. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int done;

static void tell(void) {
    static char text[8192], path[4096];
    const char *dir = getenv("PEAK_DIR");
    if (dir == NULL || __atomic_exchange_n(&done, 1, __ATOMIC_RELAXED))
        return;
    int in = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t len = in < 0 ? 0 : read(in, text, sizeof text);
    close(in);
    snprintf(path, sizeof path, "%s/%d", dir, (int)getpid());
    int out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out >= 0 && len > 0 && write(out, text, (size_t)len) < 0)
        abort();
    close(out);
}

__attribute__((destructor)) static void at_end(void) { tell(); }

/* Programs that leave without their destructors. */
void _exit(int status) {
    tell();
    for (;;)
        syscall(231, status);
}
