/* Calls through code that is made at run time, without unwind tables: with a frame pointer, with something else in its register, and with
   0 there. Blocks of 1,000 bytes are allocated below the first, of 2,000 below the second, of 4,000 below the third, and one of 3,000
   without any. */
#include "keep.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef void *(*made)(void *(*function)(void));

__attribute__((noinline)) static void *thousand(void) {
    return keep(malloc(1000));
}

__attribute__((noinline)) static void *two_thousand(void) {
    return keep(malloc(2000));
}

__attribute__((noinline)) static void *four_thousand(void) {
    return keep(malloc(4000));
}

#if defined __x86_64__
/* push rbp; mov rbp, rsp; call rdi; pop rbp; ret */
static const uint8_t with_frame[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
/* push rbp; mov ebp, 0x11; call rdi; pop rbp; ret */
static const uint8_t without[] = {0x55, 0xbd, 0x11, 0, 0, 0, 0xff, 0xd7, 0x5d, 0xc3};
/* push rbp; xor ebp, ebp; call rdi; pop rbp; ret */
static const uint8_t zero[] = {0x55, 0x31, 0xed, 0xff, 0xd7, 0x5d, 0xc3};
#elif defined __aarch64__
/* stp x29, x30, [sp, #-16]!; mov x29, sp; blr x0; ldp x29, x30, [sp], #16; ret */
static const uint32_t with_frame[] = {0xa9bf7bfd, 0x910003fd, 0xd63f0000, 0xa8c17bfd, 0xd65f03c0};
/* The same with mov x29, #0x11. */
static const uint32_t without[] = {0xa9bf7bfd, 0xd280023d, 0xd63f0000, 0xa8c17bfd, 0xd65f03c0};
/* With mov x29, xzr. */
static const uint32_t zero[] = {0xa9bf7bfd, 0xaa1f03fd, 0xd63f0000, 0xa8c17bfd, 0xd65f03c0};
#else
#error "no code for this processor"
#endif

int main(void) {
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, with_frame, sizeof with_frame);
    memcpy(page + 64, without, sizeof without);
    memcpy(page + 128, zero, sizeof zero);
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    __builtin___clear_cache(page, page + 4096);
    for (int i = 0; i < 50; i++) {
        free(((made)page)(thousand));
        free(((made)(page + 64))(two_thousand));
        free(((made)(page + 128))(four_thousand));
    }
    free(keep(malloc(3000)));
    puts("done");
    return 0;
}
