/* Forks while another thread puts in the process's first hook, so many microseconds after it began: the child can hook, too. */
#include <grapnel_hook.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

__attribute__((noinline)) static int one(int x)
{
    __asm__ volatile("" ::: "memory");
    return x * 3 + 1 + (x >> 2);
}

__attribute__((noinline)) static int other(int x)
{
    __asm__ volatile("" ::: "memory");
    return x * 5 + 1 + (x >> 3);
}

static int replacement(int x)
{
    return x;
}

static volatile int begun;

static void *hook(void *unused)
{
    begun = 1;
    grapnel_hook *hook;
    grapnel_error_free(grapnel_replace((void *)one, (void *)replacement, GRAPNEL_LIVE, NULL, &hook));
    return unused;
}

static long nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

int main(int argc, char **argv)
{
    long const wait = (argc > 1 ? atol(argv[1]) : 0) * 1000;
    pthread_t thread;
    pthread_create(&thread, NULL, hook, NULL);
    while (!begun)
        ;
    for (long start = nanoseconds(); nanoseconds() - start < wait;)
        ;
    pid_t const child = fork();
    if (child == 0) {
        alarm(20);
        grapnel_hook *hook;
        grapnel_error *error = grapnel_replace((void *)other, (void *)replacement, GRAPNEL_SINGLE_THREADED, NULL, &hook);
        _exit(error != NULL || other(7) != 7);
    }
    int status = 1;
    waitpid(child, &status, 0);
    pthread_join(thread, NULL);
    printf("the child ended with %d\n", status);
    return status != 0;
}
