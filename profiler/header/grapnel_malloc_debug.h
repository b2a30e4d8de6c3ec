/*
 * Android's functions for asking a process about its live blocks, as the library that `grapnel agent-path` names has
 * them. Nothing needs to be linked: where the library isn't loaded, the addresses of these functions are null.
 *
 *     LIBC_DEBUG_MALLOC_OPTIONS=backtrace LD_PRELOAD=$(grapnel agent-path) ./program
 *
 * docs/malloc-debug.md tells more.
 */
#ifndef GRAPNEL_MALLOC_DEBUG_H
#define GRAPNEL_MALLOC_DEBUG_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Set in the size of a block that was allocated in a process forked from one that is marked. */
#define GRAPNEL_MALLOC_IN_CHILD ((size_t)1 << 31)

/*
 * Gives all live blocks that have been allocated since backtraces are on. `*info` is a buffer of `*overall_size` bytes,
 * with records of `*info_size` bytes:
 *
 *     size_t    size;                       with bit 31 as above
 *     size_t    count;                      blocks of this size and backtrace
 *     uintptr_t pcs[*backtrace_size];       the leaf first; those that are missing are 0
 *
 * `*total_memory` is the sum of the sizes of all these blocks. All are 0 if there are none, or backtraces are not asked
 * for. The buffer itself is in no list.
 */
__attribute__((weak)) void get_malloc_leak_info(uint8_t **info, size_t *overall_size, size_t *info_size,
                                                size_t *total_memory, size_t *backtrace_size);

/* Gives such a buffer back. */
__attribute__((weak)) void free_malloc_leak_info(uint8_t *info);

/*
 * Writes the backtrace of the call that allocated a block, `count` addresses at most, and returns how many: 0 where none
 * is known.
 */
__attribute__((weak)) ssize_t malloc_backtrace(void *block, uintptr_t *pcs, size_t count);

/* Marks this process, as Android's Zygote is: blocks of processes that are forked from it are told apart. */
__attribute__((weak)) void grapnel_malloc_mark_parent(void);

#ifdef __cplusplus
}
#endif

#endif
