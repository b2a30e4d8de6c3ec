// Threads that wait, each in a system call of another kind, and say what came of it: the result, the error, and whether
// the time was right. A stop that isn't theirs must change nothing of that.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int milliseconds;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static struct timespec span(void) {
    return (struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000L};
}

static void later(int fd) {
    if (fork() == 0) {
        usleep(milliseconds * 1000);
        write(fd, "x", 1);
        _exit(0);
    }
}

static void said(const char *name, double began, long result, int error) {
    char line[200];
    double took = now() - began, wanted = milliseconds / 1000.0;
    // A wait that the kernel does not begin anew for anybody is begun anew with all its time, and who stops it may be slow.
    const char *time = took > wanted - 0.05 && took < wanted + 60 ? "in time" : "NOT IN TIME";
    snprintf(line, sizeof line, "%s: %ld, error %d, %s\n", name, result, error, time);
    write(1, line, strlen(line));
}

#define WAIT(name, ...)                        \
    static void *name(void *unused) {          \
        double began = now();                  \
        struct timespec t = span();            \
        long result = -99;                     \
        (void)t;                               \
        errno = 0;                             \
        __VA_ARGS__;                           \
        said(#name, began, result, errno);     \
        return unused;                         \
    }

WAIT(in_nanosleep, result = nanosleep(&t, 0))
WAIT(in_clock_nanosleep, result = clock_nanosleep(CLOCK_MONOTONIC, 0, &t, 0))
WAIT(in_epoll_wait, struct epoll_event event; result = epoll_wait(epoll_create1(0), &event, 1, milliseconds))
WAIT(in_poll, result = poll(0, 0, milliseconds))
WAIT(in_ppoll, sigset_t none; sigemptyset(&none); result = ppoll(0, 0, &t, &none))
WAIT(in_select, struct timeval v = {t.tv_sec, t.tv_nsec / 1000}; result = select(0, 0, 0, 0, &v))
WAIT(in_futex, int word = 0; result = syscall(SYS_futex, &word, FUTEX_WAIT, 0, &t, 0, 0))
WAIT(in_sigtimedwait, sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR2); result = sigtimedwait(&set, 0, &t))
WAIT(in_read, int p[2]; char c; pipe(p); later(p[1]); result = read(p[0], &c, 1))
WAIT(in_recv, int p[2]; char c; struct timeval v = {t.tv_sec, t.tv_nsec / 1000};
     socketpair(AF_UNIX, SOCK_STREAM, 0, p); setsockopt(p[0], SOL_SOCKET, SO_RCVTIMEO, &v, sizeof v);
     result = recv(p[0], &c, 1, 0))
WAIT(in_semtimedop, int id = semget(IPC_PRIVATE, 1, 0600); struct sembuf down = {0, -1, 0};
     result = semtimedop(id, &down, 1, &t); int error = errno; semctl(id, 0, IPC_RMID); errno = error)
WAIT(in_wait, int status; pid_t child = fork(); if (child == 0) { usleep(milliseconds * 1000); _exit(3); }
     result = waitpid(child, &status, 0) == child)
// That the program is told of a new message ends when one of its threads closes the queue, be it a copy: until then it can't ask
// again. The kernel can make a table without copies of what lies above the first 64.
WAIT(in_a_notice, char name[40]; snprintf(name, sizeof name, "/grapnel-waits-%d", getpid());
     struct mq_attr few = {.mq_maxmsg = 1, .mq_msgsize = 8}; mqd_t low = mq_open(name, O_CREAT | O_RDWR, 0600, &few);
     mq_unlink(name); mqd_t queue = fcntl(low, F_DUPFD, 100); close(low);
     struct sigevent notice = {.sigev_notify = SIGEV_NONE}; mq_notify(queue, &notice);
     nanosleep(&t, 0); result = mq_notify(queue, &notice))
WAIT(at_work, double end = began + milliseconds / 1000.0; while (now() < end) free(malloc(rand() % 100)); result = 0)

int main(int argc, char **argv) {
    (void)argc;
    milliseconds = atoi(argv[1]);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGTRAP);
    sigprocmask(SIG_BLOCK, &set, 0);
    void *(*all[])(void *) = {in_nanosleep, in_clock_nanosleep, in_epoll_wait,  in_poll, in_ppoll,
                              in_select,    in_futex,           in_sigtimedwait, in_read, in_recv,
                              in_semtimedop, in_wait,           in_a_notice, at_work};
    enum { COUNT = sizeof all / sizeof *all };
    pthread_t threads[COUNT];
    for (int i = 0; i < COUNT; i++) pthread_create(&threads[i], 0, all[i], 0);
    for (int i = 0; i < COUNT; i++) pthread_join(threads[i], 0);
    return 0;
}
