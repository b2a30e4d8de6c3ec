/* Processes that share the program's memory and a thread's pointer, made by clone without CLONE_VFORK or CLONE_SETTLS, beside that thread.
 * Neither fails, so errno, which they share too, stays as it is; only one of them is in the heap at a time.
 * "allocates": the guest is in the heap, the thread maps and unmaps meanwhile. "maps": the other way round, sixty times.
 * "several": two guests at a time map and unmap, and the thread waits. "own": a guest that has a pointer of its own. "threads": four at a time that are threads of the
 * process. "same": a guest that is given the thread's own pointer maps and unmaps while the thread is in the heap. "vforks": a guest's children by vfork do so. "killed": guests that do so
 * are killed at any time. "signalled": guests get a signal before they have begun, whose handler maps and unmaps. "crowd": seventy that sleep while the thread goes on, after which children by vfork, of which seventy sleep too. */
#define _GNU_SOURCE
#include "keep.h"
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STACK = 64 << 10 };

static volatile int is_done;

static char *new_stack(void) {
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED)
        exit(1);
    return stack;
}

NOINLINE static void map_one(void) {
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(keep(page), 4096);
}

NOINLINE static void of_guest(int i) {
    free(keep(malloc(10 + i % 1000)));
}

NOINLINE static void of_thread(int i) {
    free(keep(malloc(20 + i % 500)));
}

static int allocates(void *unused) {
    for (int i = 0; i < 50000; i++)
        of_guest(i);
    is_done = 1;
    _exit(unused != NULL);
}

static int maps(void *unused) {
    for (int i = 0; i < 2000; i++)
        map_one();
    _exit(unused != NULL);
}

static volatile int threads_done;

static int maps_as_thread(void *unused) {
    for (int i = 0; i < 5000; i++)
        map_one();
    __atomic_fetch_add(&threads_done, 1, __ATOMIC_SEQ_CST);
    return unused != NULL;
}

static int sleeps(void *unused) {
    for (;;)
        pause();
    return unused != NULL;
}

static int vforks(void *unused) {
    for (int i = 0; i < 300; i++) {
        int child = vfork();
        if (child == 0) {
            map_one();
            _exit(7);
        }
        int status = -1;
        if (waitpid(child, &status, 0) < 0 || WEXITSTATUS(status) != 7)
            _exit(1);
    }
    _exit(unused != NULL);
}

static void map_in_handler(int signal) {
    (void)signal;
    map_one();
}

static int maps_for_ever(void *unused) {
    for (;;)
        map_one();
    return unused != NULL;
}

static int start(int (*function)(void *), char *stack, int flags, void *pointer) {
    int child = clone(function, stack + STACK, CLONE_VM | SIGCHLD | flags, NULL, NULL, pointer, NULL);
    if (child < 0)
        exit(2);
    return child;
}

static int status_of(int child) {
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

NOINLINE static int sleeping_child(void) {
    int child = vfork();
    if (child == 0) {
        execl("/bin/sleep", "sleep", "100", NULL);
        _exit(1);
    }
    return child;
}

/* A block for a thread's pointer, as the dynamic linker makes them. */
static void *own_pointer(void) {
#ifdef __x86_64__
    void *(*allocate)(void *) = dlsym(RTLD_DEFAULT, "_dl_allocate_tls");
    char *own, *made = allocate ? allocate(NULL) : NULL;
    if (!made)
        exit(3);
    __asm__("mov %%fs:0, %0" : "=r"(own));
    *(void **)made = made;
    *(void **)(made + 16) = made;
    memcpy(made + 40, own + 40, 16);
    return made;
#else
    exit(3);
#endif
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "";
    int wrong = 0;
    sigset_t before, after;
    sigprocmask(SIG_SETMASK, NULL, &before);
    char *stack = new_stack(), *other = new_stack();
    if (strcmp(which, "allocates") == 0) {
        int child = start(allocates, stack, 0, NULL);
        while (!is_done)
            map_one();
        wrong += status_of(child) != 0;
    } else if (strcmp(which, "maps") == 0) {
        for (int round = 0; round < 60; round++) {
            int child = start(maps, stack, 0, NULL), status = 0;
            while (waitpid(child, &status, WNOHANG) == 0)
                for (int i = 0; i < 100; i++)
                    of_thread(i);
            wrong += status != 0;
        }
    } else if (strcmp(which, "several") == 0) {
        for (int round = 0; round < 60; round++) {
            int first = start(maps, stack, 0, NULL), second = start(maps, other, 0, NULL);
            wrong += (status_of(first) != 0) + (status_of(second) != 0);
        }
    } else if (strcmp(which, "same") == 0 || strcmp(which, "vforks") == 0) {
        int is_same = strcmp(which, "same") == 0;
        int child = start(is_same ? maps : vforks, stack, is_same ? CLONE_SETTLS : 0, __builtin_thread_pointer());
        for (int i = 0; i < 20000; i++) {
            of_thread(i);
            sigprocmask(SIG_SETMASK, NULL, &after);
            wrong += sigismember(&before, SIGUSR1) != sigismember(&after, SIGUSR1);
        }
        wrong += status_of(child) != 0;
    } else if (strcmp(which, "signalled") == 0) {
        struct sigaction action = {.sa_handler = map_in_handler, .sa_flags = SA_RESTART};
        sigaction(SIGUSR1, &action, NULL);
        for (int round = 0; round < 200; round++) {
            int child = start(maps, stack, 0, NULL), status = 0;
            kill(child, SIGUSR1);
            while (waitpid(child, &status, WNOHANG) == 0)
                free(keep(malloc(100)));
            wrong += status != 0;
        }
    } else if (strcmp(which, "killed") == 0) {
        for (int round = 0; round < 1000; round++) {
            int child = start(maps_for_ever, stack, 0, NULL);
            struct timespec time = {0, round * 7919 % 60000 + 1};
            nanosleep(&time, NULL);
            kill(child, SIGKILL);
            wrong += status_of(child) != SIGKILL;
            map_one();
            of_thread(round);
        }
    } else if (strcmp(which, "threads") == 0) {
        int flags = CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
        for (int i = 0; i < 4; i++)
            if (clone(maps_as_thread, new_stack() + STACK, CLONE_VM | flags, NULL) < 0)
                exit(2);
        while (threads_done < 4)
            map_one();
        usleep(20000);
    } else if (strcmp(which, "crowd") == 0) {
        int children[140];
        for (int i = 0; i < 70; i++)
            children[i] = start(sleeps, new_stack(), 0, NULL);
        for (int i = 70; i < 140; i++)
            children[i] = sleeping_child();
        for (int i = 0; i < 20000; i++)
            of_thread(i);
        for (int i = 0; i < 140; i++)
            kill(children[i], SIGKILL);
        for (int i = 0; i < 140; i++)
            wrong += status_of(children[i]) != SIGKILL;
    } else {
        wrong += status_of(start(allocates, stack, CLONE_SETTLS, own_pointer())) != 0;
    }
    for (int i = 0; i < 20000; i++)
        of_thread(i);
    printf("wrong %d\n", wrong);
    return wrong != 0;
}
