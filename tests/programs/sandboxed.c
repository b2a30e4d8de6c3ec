/* Enters a sandbox that kills at any system call that malloc itself and signals don't need, and allocates. */
#define _GNU_SOURCE
#include "keep.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static NOINLINE void *down(int depth, size_t size) {
    void *block = depth == 0 ? keep(malloc(size)) : down(depth - 1, size);
    __asm__ volatile("" : : : "memory");
    return block;
}

static NOINLINE void work(int count) {
    for (int i = 0; i < count; i++)
        free(down(i % 200, (size_t)(i % 100 + 1)));
}

int main(void) {
    free(keep(malloc(100000)));
    static const int allowed[] = {
        SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap,
        SYS_madvise, SYS_futex, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    };
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter filter[COUNT + 3] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (int i = 0; i < COUNT; i++)
        filter[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], (unsigned char)(COUNT - i), 0);
    filter[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = COUNT + 3, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 3;
    work(50000);
    if (write(1, "sandboxed\n", 10) != 10)
        return 4;
    work(50000);
    return 5;
}
