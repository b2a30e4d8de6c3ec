/* Where the handler of a signal has interrupted its thread, and whether that is in libc's code. Needs _GNU_SOURCE. */
#ifndef WHERE_H
#define WHERE_H
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

static uintptr_t libc_begins, libc_ends;

static int find_in(struct dl_phdr_info *object, size_t size, void *within) {
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t begins = object->dlpi_addr + segment->p_vaddr, address = (uintptr_t)within;
        if (segment->p_type == PT_LOAD && begins <= address && address < begins + segment->p_memsz) {
            libc_begins = begins;
            libc_ends = begins + segment->p_memsz;
        }
    }
    return 0;
}

static uintptr_t interrupted(const ucontext_t *context) {
#if defined __x86_64__
    return (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined __aarch64__
    return context->uc_mcontext.pc;
#else
    return context->uc_mcontext.arm_pc;
#endif
}

static void find_libc(void) {
    dl_iterate_phdr(find_in, dlsym(RTLD_NEXT, "malloc"));
}

static bool is_in_libc(uintptr_t address) {
    return libc_begins <= address && address < libc_ends;
}
#endif
