/*
 * Functions of libc are hooked in and out while other threads run them where libc has blocked all signals: at a thread's end,
 * around posix_spawn and in its child. A trap there would end the process or the child.
 */
#include <grapnel_hook.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static volatile int stop;
static volatile unsigned entered;

static void enter(grapnel_call *call, void *data)
{
    (void)call;
    (void)data;
    __atomic_fetch_add(&entered, 1, __ATOMIC_RELAXED);
}

static void check(grapnel_error *error)
{
    if (error) {
        fprintf(stderr, "%s\n", grapnel_error_message(error));
        exit(1);
    }
}

static void *short_life(void *data)
{
    return data;
}

static void *threads(void *data)
{
    while (!stop) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, short_life, NULL) == 0)
            pthread_join(thread, NULL);
    }
    return data;
}

static void *children(void *data)
{
    char *arguments[] = {"true", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, 1, 9);
    while (!stop) {
        pid_t child;
        int status = 0;
        if (posix_spawn(&child, "/bin/true", &actions, NULL, arguments, environ) == 0)
            waitpid(child, &status, 0);
        if (status) {
            fprintf(stderr, "a child ended with %#x\n", status);
            exit(1);
        }
    }
    posix_spawn_file_actions_destroy(&actions);
    return data;
}

static void storm(const char *name, void *(*runner)(void *), unsigned *ways)
{
    pthread_t thread;
    void *function;
    stop = 0;
    if (pthread_create(&thread, NULL, runner, NULL) != 0)
        exit(1);
    check(grapnel_find("libc.so.6", name, &function, NULL));
    for (time_t end = time(NULL) + 3; time(NULL) < end;) {
        grapnel_hook *hook;
        check(grapnel_attach(function, enter, NULL, NULL, 0, GRAPNEL_LIVE, &hook));
        *ways |= grapnel_patch_way(function);
        usleep(300);
        check(grapnel_remove(hook, GRAPNEL_LIVE));
    }
    stop = 1;
    pthread_join(thread, NULL);
}

int main(void)
{
    static const char *const of_children[] = {"munmap", "dup2", "execve", "sigprocmask"};
    unsigned ways = 0;
    storm("madvise", threads, &ways);
    for (unsigned i = 0; i < sizeof of_children / sizeof *of_children; i++)
        storm(of_children[i], children, &ways);
    printf("%s, no trap was met with signals blocked: %s\n", entered ? "entered" : "never entered",
           ways == GRAPNEL_REMAP ? "pages mapped anew" : "otherwise");
    return 0;
}
