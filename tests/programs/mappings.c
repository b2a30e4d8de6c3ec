/* Maps memory in every way, at lines marked MAP; all numbers are known. With an argument, one of the hard ways alone. */
#define _GNU_SOURCE
#include "keep.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define ANY (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)

static void expect(int right, const char *what) {
    if (!right) {
        printf("wrong: %s, errno %d\n", what, errno);
        exit(1);
    }
}

static NOINLINE char *anonymous(size_t pages) {
    return keep(mmap(NULL, pages * PAGE, ANY, PRIVATE, -1, 0)); /* MAP anonymous */
}

/* 100 pages; 3 from the middle go. 97 stay in two ranges. */
static void in_part(void) {
    char *start = anonymous(100);
    expect(munmap(start + 50 * PAGE, 3 * PAGE) == 0, "munmap of a part");
    memset(start, 1, 50 * PAGE);
    memset(start + 53 * PAGE, 1, 47 * PAGE);
}

/* 10 pages, of which a file takes the place of 4, and a mapping without one must not take 5. One munmap ends all. */
static void fixed(void) {
    char *start = anonymous(10);
    int fd = open("/proc/self/exe", O_RDONLY);
    char *file = mmap(start + 2 * PAGE, 3 * PAGE + 1, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0); /* MAP over */
    expect(file == start + 2 * PAGE && memcmp(file, "\177ELF", 4) == 0, "MAP_FIXED");
    errno = 0;
    void *none = mmap(start, 5 * PAGE, ANY, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0);
    expect(none == MAP_FAILED && errno == EEXIST, "MAP_FIXED_NOREPLACE");
    close(fd);
    expect(munmap(start, 10 * PAGE) == 0, "munmap of three");
    none = mmap(start, 5 * PAGE, ANY, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0); /* MAP anew */
    expect(none == start && munmap(start, 5 * PAGE) == 0, "MAP_FIXED_NOREPLACE where nothing is");
}

/* 20 pages grow to 200, of which 7 are left; 8 pages move to a known place; 2 stay where they were when they move. */
static void resized(void) {
    char *start = anonymous(20);
    strcpy(start, "kept");
    start = mremap(start, 20 * PAGE, 200 * PAGE, MREMAP_MAYMOVE); /* MAP grown */
    expect(start != MAP_FAILED && strcmp(start, "kept") == 0, "mremap to more");
    char *same = mremap(start, 200 * PAGE, 7 * PAGE, 0);
    expect(same == start, "mremap to less");
    same = mremap(start, 7 * PAGE, 7 * PAGE, MREMAP_MAYMOVE);
    expect(same == start, "mremap to as much");
    char *place = anonymous(8), *other = anonymous(8);
    place[0] = 'p';
    same = mremap(place, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other); /* MAP moved */
    expect(same == other && other[0] == 'p', "mremap to a place");
    char *left = anonymous(2);
    same = mremap(left, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL); /* MAP left */
    expect(same != MAP_FAILED && same != left, "MREMAP_DONTUNMAP");
    expect(munmap(same, 2 * PAGE) == 0 && munmap(left, 2 * PAGE) == 0, "munmap of both");
    char *shared = mmap(NULL, 3 * PAGE, ANY, MAP_SHARED | MAP_ANONYMOUS, -1, 0); /* MAP shared */
    same = mremap(shared, 0, 3 * PAGE, MREMAP_MAYMOVE); /* MAP twice */
    expect(same != MAP_FAILED && same != shared, "mremap of nothing old");
    shared[0] = 's';
    expect(same[0] == 's' && munmap(shared, 3 * PAGE) == 0 && munmap(same, 3 * PAGE) == 0, "a shared mapping twice");
}

/* 9 pages with two holes, of one page each: one in what stays of them when they are made 4, one in what goes. */
static void with_holes(void) {
    char *start = anonymous(9);
    expect(munmap(start + PAGE, PAGE) == 0 && munmap(start + 6 * PAGE, PAGE) == 0, "munmap of two holes");
    char *same = mremap(start, 9 * PAGE, 4 * PAGE, 0);
    expect(same == start, "mremap to less, with holes");
    expect(munmap(start, PAGE) == 0, "munmap of the first");
}

/* What must fail, and change nothing. */
static void failing(void) {
    char *start = anonymous(4);
    errno = 0;
    expect(munmap(start + 1, PAGE) == -1 && errno == EINVAL, "munmap of no page");
    errno = 0;
    expect(mmap(NULL, 0, ANY, PRIVATE, -1, 0) == MAP_FAILED && errno == EINVAL, "mmap of nothing");
    errno = 0;
    expect(mmap(NULL, PAGE, ANY, MAP_SHARED, -1, 0) == MAP_FAILED && errno == EBADF, "mmap of no file");
    errno = 0;
    expect(mremap(start, 4 * PAGE, 1UL << 46, 0) == MAP_FAILED && errno == ENOMEM, "mremap to too much");
    errno = 0;
    expect(mremap(start, 4 * PAGE, 5 * PAGE, 0xff) == MAP_FAILED && errno == EINVAL, "mremap with wrong flags");
    errno = 0;
    expect(sbrk(1L << 50) == (void *)-1 && errno == ENOMEM, "sbrk of too much");
    errno = 0;
    expect(brk((void *)~0UL) == -1 && errno == ENOMEM, "brk to nowhere");
    errno = 0;
    expect(shmdt(start + 1) == -1 && errno == EINVAL, "shmdt of none");
    errno = 77;
    expect(munmap(start, 4 * PAGE) == 0 && errno == 77, "munmap leaves errno alone");
}

/* 3 pages and a half of the break, of which the half goes; a segment that goes, one that stays. */
static void others(void) {
    char *before = sbrk(3 * PAGE + PAGE / 2); /* MAP sbrk */
    expect(before != (void *)-1 && sbrk(-(long)PAGE / 2) == before + 3 * PAGE + PAGE / 2, "sbrk");
    expect(brk(before + 5 * PAGE) == 0 && brk(before + 3 * PAGE) == 0, "brk"); /* MAP brk */
    expect(sbrk(0) == before + 3 * PAGE, "sbrk of nothing");
    int id = shmget(IPC_PRIVATE, 5 * PAGE - 1, 0600);
    char *one = shmat(id, NULL, 0), *two = shmat(id, NULL, 0); /* MAP shmat */
    expect(one != (void *)-1 && two != (void *)-1 && shmdt(one) == 0, "segments");
    two[5 * PAGE - 1] = 1;
    shmctl(id, IPC_RMID, NULL);
}

static void *little(void *unused) {
    (void)unused;
    expect(munmap(anonymous(1), PAGE) == 0, "mmap on a small stack");
    return NULL;
}

/* libc's own mappings: none counts. */
static void libcs(void) {
    char *large = keep(malloc(10 << 20));
    large = keep(realloc(large, 40 << 20));
    free(large);
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN);
    for (int i = 0; i < 10; i++) {
        expect(pthread_create(&thread, i % 2 ? &attributes : NULL, little, NULL) == 0, "pthread_create");
        pthread_join(thread, NULL);
    }
    void *library = dlopen("libm.so.6", RTLD_NOW);
    expect(library != NULL, "dlopen");
    fclose(fopen("/proc/self/status", "r"));
}

static volatile sig_atomic_t handled;

static void handler(int number) {
    (void)number;
    char *page = mmap(NULL, 2 * PAGE, ANY, PRIVATE, -1, 0); /* MAP handler */
    handled += munmap(page, 2 * PAGE) == 0;
}

/* Ten in a handler on a stack of its own, in the middle of nothing and of malloc. */
static void in_handler(void) {
    stack_t stack = {.ss_sp = keep(malloc(MINSIGSTKSZ + 2048)), .ss_size = MINSIGSTKSZ + 2048};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, NULL);
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < 10; i++)
        raise(SIGUSR1);
    expect(handled == 10, "mmap in a handler");
}

/* Children: one unmaps what its parent mapped and maps 6 pages, one is of vfork. */
static void children(void) {
    char *start = anonymous(30);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        expect(munmap(start, 30 * PAGE) == 0, "munmap in a child");
        keep(anonymous(6));
        _exit(7);
    }
    int status;
    expect(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "fork");
    if ((child = vfork()) == 0)
        _exit(munmap(mmap(NULL, PAGE, ANY, PRIVATE, -1, 0), PAGE)); /* MAP vfork */
    expect(waitpid(child, &status, 0) == child && status == 0, "vfork");
    memset(start, 1, 30 * PAGE);
    expect(munmap(start, 30 * PAGE) == 0, "munmap in the parent");
}

static char *handed[64];
static pthread_barrier_t barrier;

/* Maps, hands over, unmaps what others mapped: whoever gets the addresses next is recorded later. */
static void *trader(void *number) {
    for (int round = 0; round < 300; round++) {
        long own = (long)number, other = (own + 1) % 4;
        for (int i = 0; i < 16; i++)
            handed[own * 16 + i] = anonymous(1 + i % 3);
        pthread_barrier_wait(&barrier);
        for (int i = 0; i < 16; i++)
            munmap(handed[other * 16 + i], (1 + i % 3) * PAGE);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[4];
    pthread_barrier_init(&barrier, NULL, 4);
    for (long i = 0; i < 4; i++)
        pthread_create(&all[i], NULL, trader, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
}

#define AREA 512UL

static unsigned below(unsigned most) {
    static unsigned long state = 1;
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return (state >> 33) % most;
}

/* Maps, unmaps, resizes and moves parts of an area, whatever is there, in units of no whole page too. Says how many of its
   pages are mapped at the end. What moves has no holes, as kernels before 6.17 want it. Some moves fail, since nothing is at
   their old place, when they have emptied their new one. */
static void at_random(void) {
    char *area = mmap(NULL, AREA * PAGE, PROT_NONE, PRIVATE, -1, 0);
    expect(area != MAP_FAILED && munmap(area, AREA * PAGE) == 0, "an area");
    int fd = memfd_create("mappings", 0), failed = 0;
    expect(fd >= 0 && ftruncate(fd, AREA * PAGE) == 0, "a file");
    unsigned char residence[AREA];
    for (int i = 0; i < 40000; i++) {
        unsigned at = below(AREA), other = below(AREA), pages = 1 + below(below(4) ? 16 : 100), more = 1 + below(32);
        if (at + pages > AREA || other + more > AREA || other + pages > AREA) {
            continue;
        }
        char *start = area + at * PAGE, *place = area + other * PAGE;
        size_t len = pages * PAGE - (below(2) ? below(PAGE) : 0);
        int is_of_file = below(3) == 0, is_full = mincore(start, pages * PAGE, residence) == 0;
        void *got = start;
        switch (below(6)) {
        case 0:
            got = mmap(start, len, ANY, MAP_FIXED | MAP_SHARED | (is_of_file ? 0 : MAP_ANONYMOUS), is_of_file ? fd : -1, 0);
            break;
        case 1:
            expect(munmap(start, len) == 0, "munmap");
            break;
        case 2:
            got = mremap(start, len, more * PAGE, 0);
            break;
        case 3:
            got = mremap(start, len, 1 + below(len), 0);
            break;
        case 4:
            if (is_full || mincore(start, PAGE, residence) != 0) {
                got = mremap(start, len, more * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
            }
            break;
        case 5:
            if (is_full) {
                got = mremap(start, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, place);
            }
        }
        failed += got == MAP_FAILED;
    }
    size_t mapped = 0;
    for (size_t page = 0; page < AREA; page++) {
        mapped += mincore(area + page * PAGE, PAGE, residence) == 0;
    }
    expect(failed > 1000 && mapped > 10 && mapped < AREA - 10, "some of all");
    printf("mapped %zu\n", mapped);
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "";
    if (strcmp(which, "threads") == 0) {
        threads();
    } else if (strcmp(which, "children") == 0) {
        children();
    } else if (strcmp(which, "at random") == 0) {
        at_random();
    } else {
        in_part();
        fixed();
        resized();
        with_holes();
        failing();
        libcs();
        in_handler();
        others();
    }
    puts("done");
    return 0;
}
