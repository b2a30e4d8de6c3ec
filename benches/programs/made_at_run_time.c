/* One thread, stacks of 5 to 36 frames of code that is made at run time: it has frame pointers, and no unwind tables. argv[1] thousand blocks. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef void (*made)(void (*function)(void), unsigned depth);

static volatile unsigned size = 64;

__attribute__((noinline)) static void pair(void) {
    void *volatile block = malloc(size);
    free(block);
}

#if defined __x86_64__
/* made: push rbp; mov rbp, rsp; sub rsp, 32; dec esi; jz last; call made; leave; ret
   last: call rdi; leave; ret */
static const uint8_t code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0xff, 0xce, 0x74, 0x07,
                               0xe8, 0xef, 0xff, 0xff, 0xff, 0xc9, 0xc3, 0xff, 0xd7, 0xc9, 0xc3};
#elif defined __aarch64__
/* made: stp x29, x30, [sp, #-48]!; mov x29, sp; subs w1, w1, #1; b.eq last; bl made; b end
   last: blr x0
   end: ldp x29, x30, [sp], #48; ret */
static const uint32_t code[] = {0xa9bd7bfd, 0x910003fd, 0x71000421, 0x54000060, 0x97fffffc,
                                0x14000002, 0xd63f0000, 0xa8c37bfd, 0xd65f03c0};
#else
#error "no code for this processor"
#endif

int main(int argc, char **argv) {
    unsigned long blocks = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1000) * 1000;
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return 1;
    memcpy(page, code, sizeof code);
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    __builtin___clear_cache(page, page + 4096);
    unsigned state = 1;
    for (unsigned long n = 0; n < blocks; n++) {
        state = state * 1664525 + 1013904223;
        ((made)page)(pair, 5 + (state >> 27));
    }
    printf("%u\n", state);
    return 0;
}
