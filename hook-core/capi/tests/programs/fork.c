/* Forks while another thread is in grapnel_commit. The child has the hooks that were in, and can hook anew. */
#include <grapnel_hook.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *(*original_malloc)(size_t);
static grapnel_hook *malloc_hook;
static volatile int armed, mallocs, status = -1;

__attribute__((noinline)) static int answer(void)
{
    __asm__ volatile("");
    return 41;
}

static int better(void)
{
    return 42;
}

__attribute__((noinline)) static int question(void)
{
    __asm__ volatile("");
    return 6;
}

static int child(void)
{
    grapnel_hook *hook;
    int before = mallocs;
    void *volatile block = malloc(10);
    free(block);
    if (mallocs == before)
        return 1;
    if (grapnel_replace((void *)question, (void *)better, GRAPNEL_SINGLE_THREADED, NULL, &hook) || question() != 42)
        return 2;
    if (grapnel_remove(hook, GRAPNEL_SINGLE_THREADED) || question() != 6)
        return 3;
    grapnel_error *error = grapnel_remove(malloc_hook, GRAPNEL_SINGLE_THREADED);
    if (!error)
        return 4;
    grapnel_error_free(error);
    return 42;
}

static void *forks(void *unused)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(child());
    int how;
    if (waitpid(pid, &how, 0) == pid && WIFEXITED(how))
        status = WEXITSTATUS(how);
    return unused;
}

/* Whether this is called by a commit. */
static int in_a_commit(void)
{
    grapnel_error *error = grapnel_commit(grapnel_begin(), GRAPNEL_SINGLE_THREADED);
    grapnel_error_free(error);
    return error != NULL;
}

static void *counting_malloc(size_t size)
{
    mallocs++;
    if (armed) {
        armed = 0;
        if (in_a_commit()) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, forks, NULL) || pthread_join(thread, NULL))
                abort();
        } else {
            armed = 1;
        }
    }
    return original_malloc(size);
}

int main(void)
{
    void *malloc_at;
    grapnel_hook *hook;
    if (grapnel_find("libc.so", "malloc", &malloc_at, NULL)
        || grapnel_replace(malloc_at, (void *)counting_malloc, GRAPNEL_LIVE, (void **)&original_malloc, &malloc_hook))
        return 1;
    armed = 1;
    if (grapnel_replace((void *)answer, (void *)better, GRAPNEL_LIVE, NULL, &hook))
        return 1;
    armed = 0;
    printf("the child exited with %d\n", status);
    return status != 42 || grapnel_remove(hook, GRAPNEL_LIVE) || grapnel_remove(malloc_hook, GRAPNEL_LIVE);
}
