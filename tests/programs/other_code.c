/* Spends nearly all of its time in 32-bit code, as a program of Wine's may: argv[1] rounds of a loop each time, and a line for each
   argv[2] times that it came back. */
#define _GNU_SOURCE
#include "keep.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What is jumped to: an offset and a selector. */
struct far {
    uint32_t offset;
    uint16_t selector;
} __attribute__((packed));

/* Where the 32-bit code is, where it comes back to, where the way there and the way on are noted. */
enum { BACK = 64, FAR = 128, NOTED = 256, STACK = 32768, LENGTH = 65536 };

int main(int argc, char **argv) {
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 1000;
    long each = argc > 2 ? atol(argv[2]) : 1;
    int rights = PROT_READ | PROT_WRITE | PROT_EXEC;
    unsigned char *low = mmap(NULL, LENGTH, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (low == MAP_FAILED)
        return 2;
    uint32_t back = (uint32_t)(uintptr_t)(low + BACK), noted = (uint32_t)(uintptr_t)(low + NOTED), on = noted + 8;
    /* dec ecx; jnz back to that; ljmp 0x33:back */
    unsigned char code[] = {0x49, 0x75, 0xfd, 0xea, 0, 0, 0, 0, 0x33, 0};
    memcpy(code + 4, &back, 4);
    memcpy(low, code, sizeof code);
    /* mov rsp, [noted]; jmp [on] */
    unsigned char away[] = {0x48, 0x8b, 0x24, 0x25, 0, 0, 0, 0, 0xff, 0x24, 0x25, 0, 0, 0, 0};
    memcpy(away + 4, &noted, 4);
    memcpy(away + 11, &on, 4);
    memcpy(low + BACK, away, sizeof away);
    struct far *far = (struct far *)(low + FAR);
    *far = (struct far){(uint32_t)(uintptr_t)low, 0x23};
    for (long times = 0;; times++) {
        free(keep(malloc(100)));
        __asm__ volatile("push %%rbp\n\tpush %%rbx\n\t"
                         "lea 1f(%%rip), %%rax\n\tmov %%rax, 8(%0)\n\tmov %%rsp, (%0)\n\t"
                         "mov %2, %%rsp\n\tmov %3, %%ecx\n\tljmp *(%1)\n\t"
                         "1: pop %%rbx\n\tpop %%rbp"
                         :
                         : "S"(low + NOTED), "D"(far), "d"(low + STACK), "b"(rounds)
                         : "rax", "rcx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
        if (times % each == 0) {
            printf("%ld\n", times);
            fflush(stdout);
        }
    }
}
