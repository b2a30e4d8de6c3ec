/* Inline hooks and trampolines for live code: the C interface.
 *
 * Every function that can fail returns NULL when it succeeded, else an error that the caller frees with
 * grapnel_error_free. An error says what was found where, and what could be done instead.
 *
 * Link with -lgrapnel_hook.
 */
#ifndef GRAPNEL_HOOK_H
#define GRAPNEL_HOOK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Something that was attached: a replacement, a listener or a probe. */
typedef struct grapnel_hook grapnel_hook;

/* Why something failed. */
typedef struct grapnel_error grapnel_error;

/* Who may be running the function while it is patched. */
enum grapnel_liveness {
    /* No other thread runs. Nearly every function that can be hooked at all can be hooked so. Calls of the function may be
     * under way; where one may return into the bytes that are overwritten, a trap catches it, as with GRAPNEL_LIVE. */
    GRAPNEL_SINGLE_THREADED = 0,
    /* Other threads may be running the function. A handler for SIGTRAP is installed and stays; traps of others go on to
     * the handler that was there before. No thread has SIGTRAP blocked while it runs the function. */
    GRAPNEL_LIVE = 1,
};

/* Replaces a function. Calls of `target` go to `replacement`, which must have the same type. What was attached last to a
 * function is the outermost, and is reached first. If `original` isn't NULL, what `replacement` replaces, callable in its
 * place, is stored there before the first call can reach the replacement: what was attached before, and within that the
 * function. It stays valid for good. If `hook` isn't NULL, the handle is stored there; otherwise the hook stays in for
 * good. */
grapnel_error *grapnel_replace(void *target, void *replacement, enum grapnel_liveness liveness, void **original,
                               grapnel_hook **hook);

/* A call of a function, or a probed instruction, as a listener sees it. Valid until the listener returns. */
typedef struct grapnel_call grapnel_call;

/* What is told of a call. `data` is what was given when it was attached. It may run in any thread, also in several at
 * once, must not throw, and keeps errno and the registers without doing anything for it. */
typedef void (*grapnel_listener)(grapnel_call *call, void *data);

/* How a listener or a probe is attached. */
enum grapnel_flags {
    /* While a guarded listener or probe runs in a thread, none is told of what that thread does. */
    GRAPNEL_GUARDED = 1,
    /* Listeners: all vector registers are seen and kept in full. Without it, only those that pass arguments and results
     * are, and of them the low 128 bits. Probes always do this, unless told otherwise. */
    GRAPNEL_VECTORS = 2,
    /* Probes: the listener and what it calls use general registers only. Several times as fast. */
    GRAPNEL_GENERAL_ONLY = 4,
};

/* Tells a listener when a function is entered and when it has returned; either may be NULL. The function must return once
 * for each call (unlike setjmp and vfork), and not look at its own return address. Exceptions and longjmp may pass it;
 * such a call has no return. `flags` are those above, or 0. */
grapnel_error *grapnel_attach(void *target, grapnel_listener enter, grapnel_listener leave, void *data, unsigned flags,
                              enum grapnel_liveness liveness, grapnel_hook **hook);

/* Tells a listener when the instruction at `at` is about to run. The whole function around it is looked at for branches
 * into the instructions that are patched: it has `size` bytes at `function`, or, if that is NULL, is found in its
 * object's unwind table. */
grapnel_error *grapnel_probe(void *at, void *function, size_t size, grapnel_listener hit, void *data, unsigned flags,
                             enum grapnel_liveness liveness, grapnel_hook **hook);

/* Takes a hook out and frees the handle. When it was the last on its function, that is then as it was before, byte for
 * byte. If it fails, for instance because someone else has patched the function meanwhile, nothing has changed and the
 * handle stays valid. Calls that are under way may still be in the listener or the replacement. */
grapnel_error *grapnel_remove(grapnel_hook *hook, enum grapnel_liveness liveness);

/* Many of these at once, with one synchronisation of all threads: the functions are patched, and what the out pointers
 * point to is written, by grapnel_commit. */
typedef struct grapnel_batch grapnel_batch;
grapnel_batch *grapnel_begin(void);
void grapnel_batch_replace(grapnel_batch *batch, void *target, void *replacement, void **original,
                           grapnel_hook **hook);
void grapnel_batch_attach(grapnel_batch *batch, void *target, grapnel_listener enter, grapnel_listener leave,
                          void *data, unsigned flags, grapnel_hook **hook);
void grapnel_batch_probe(grapnel_batch *batch, void *at, void *function, size_t size, grapnel_listener hit, void *data,
                         unsigned flags, grapnel_hook **hook);
void grapnel_batch_remove(grapnel_batch *batch, grapnel_hook *hook);
/* Does all that was asked for, and frees the batch. One request that fails doesn't keep the others out: its handle is
 * NULL, or stays valid if it was to be removed, and the first one's error is returned.
 *
 * Hooks work on in a child made by fork. If another thread was just changing hooks then, the child can't take out what was
 * in before: handles from before the fork are answered with an error. */
grapnel_error *grapnel_commit(grapnel_batch *batch, enum grapnel_liveness liveness);
/* Frees the batch, and does nothing. NULL is allowed. */
void grapnel_abandon(grapnel_batch *batch);

/* The general registers of x86-64. Changes of rsp and rip are ignored. rflags is 0 but in probes; rip is the entry, where
 * the call returns to, or the probed instruction. */
typedef struct grapnel_registers {
    uint64_t rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15, rflags, rip;
} grapnel_registers;

/* The registers, to be read and changed. */
grapnel_registers *grapnel_call_registers(grapnel_call *call);
/* On entry: an integer or pointer argument by its number from 0, in registers or memory. */
uint64_t grapnel_argument(grapnel_call *call, unsigned index);
void grapnel_set_argument(grapnel_call *call, unsigned index, uint64_t value);
/* On leaving: the integer or pointer result. */
uint64_t grapnel_result(grapnel_call *call);
void grapnel_set_result(grapnel_call *call, uint64_t value);
/* A word that is set on entry and read when the same call leaves. */
void grapnel_set_word(grapnel_call *call, uint64_t word);
uint64_t grapnel_word(grapnel_call *call);
/* The low 128 bits of a vector register, lowest first. 0 if it wasn't saved, else 1. */
int grapnel_vector(grapnel_call *call, unsigned index, uint64_t value[2]);
int grapnel_set_vector(grapnel_call *call, unsigned index, const uint64_t value[2]);
/* How many calls and returns no listener was told of, in the whole process, for want of a place for what is kept about
 * calls under way. */
uint64_t grapnel_missed(void);

/* A function whose importers are bound to another. */
typedef struct grapnel_rebinding grapnel_rebinding;

/* Binds all importers of a function to `replacement`: every word of the loaded objects that the dynamic linker filled
 * with the function's address is changed, and no code. All objects that define the name count, also those that were loaded
 * with RTLD_LOCAL or define a function of their own by that name; `original` is that of the first. Calls that don't go through such a word aren't seen. The function
 * is stored in `original` first, and the handle in `rebinding`; either may be NULL. A word that holds something else is
 * left alone and is an error, also if all others were changed; `rebinding` is then stored all the same. No object may be
 * loaded or unloaded meanwhile. */
grapnel_error *grapnel_rebind(const char *name, void *replacement, void **original, grapnel_rebinding **rebinding);
/* The same for objects that were loaded since, to be called after dlopen. */
grapnel_error *grapnel_rebind_again(grapnel_rebinding *rebinding);
/* How many words hold the replacement. */
size_t grapnel_rebound(const grapnel_rebinding *rebinding);
/* Puts back what was in the words, but for those that hold something else by now, and frees the handle. */
grapnel_error *grapnel_unbind(grapnel_rebinding *rebinding);

/* Finds a function in a loaded object. `object` is how the object's file name begins ("libc.so"), its soname or the end
 * of its path, or NULL for the first object that defines the name. `name` may ask for a version ("memcpy@GLIBC_2.2.5"). A
 * function that isn't exported is looked for in the symbol tables of the object's file, of its debug file and in its
 * .gnu_debugdata, if these files belong to what is loaded. An indirect function (IFUNC) is resolved to what is really
 * called. `size` may be NULL. No object may be loaded or unloaded meanwhile. */
grapnel_error *grapnel_find(const char *object, const char *name, void **address, size_t *size);
/* Finds the function around an address: its name, cut to `room` bytes with the zero at its end, or "" if no symbol table
 * has one; where it begins, and how long it is. Each may be NULL. */
grapnel_error *grapnel_find_at(const void *address, char *name, size_t room, void **start, size_t *size);

/* What went wrong, as one sentence. Valid until the error is freed. */
const char *grapnel_error_message(const grapnel_error *error);

/* What could be done instead. Valid until the error is freed. */
const char *grapnel_error_remedy(const grapnel_error *error);

/* The address that the error is about: of the offending instruction, if there is one. 0 if there is none. */
uint64_t grapnel_error_address(const grapnel_error *error);

/* Frees an error. NULL is allowed. */
void grapnel_error_free(grapnel_error *error);

#ifdef __cplusplus
}
#endif

#endif
