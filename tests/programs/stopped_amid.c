/* A timer whose handler allocates where it stops the program amid the code that a recorder has made, which is in no object, or in the
 * program's own. Prints how often it was the first, on standard error; that depends on whether there is such code. */
#define _GNU_SOURCE
#include "keep.h"
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <ucontext.h>

enum { OBJECTS = 64, MOST = 40 };
static struct {
    unsigned long start, end;
} objects[OBJECTS];
static int count;
static volatile int amid, elsewhere;

static int note(struct dl_phdr_info *info, size_t size, void *argument) {
    (void)size;
    (void)argument;
    for (int i = 0; i < info->dlpi_phnum && count < OBJECTS; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        objects[count].start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        objects[count].end = objects[count].start + info->dlpi_phdr[i].p_memsz;
        count++;
    }
    return 0;
}

/* Nothing of malloc or free has been run there but their first instructions, which change nothing of the heap. */
NOINLINE static void stopped_amid(void) {
    free(keep(malloc(77)));
    __asm__ volatile("" : : : "memory");
}

static void on_alarm(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
#ifdef __x86_64__
    unsigned long pc = (unsigned long)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#else
    unsigned long pc = (unsigned long)((ucontext_t *)context)->uc_mcontext.pc;
#endif
    for (int i = 0; i < count; i++)
        if (pc >= objects[i].start && pc < objects[i].end) {
            elsewhere++;
            return;
        }
    amid++;
    stopped_amid();
}

/* How a stack that is whole begins. */
NOINLINE static void allocates(void) {
    while (amid < MOST && elsewhere < 100000)
        for (int i = 0; i < 1000; i++)
            free(keep(malloc(24)));
    __asm__ volatile("" : : : "memory");
}

int main(void) {
    dl_iterate_phdr(note, NULL);
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_RESTART};
    action.sa_sigaction = on_alarm;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 50}, {0, 50}}, off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, NULL);
    allocates();
    setitimer(ITIMER_REAL, &off, NULL);
    fprintf(stderr, "%d\n", amid);
    return 0;
}
