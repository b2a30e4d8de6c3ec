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

/* A function that is hooked. */
typedef struct grapnel_hook grapnel_hook;

/* Why something failed. */
typedef struct grapnel_error grapnel_error;

/* Who may be running the function while it is patched. */
enum grapnel_liveness {
    /* No other thread runs. Every function that can be hooked at all can be hooked so. */
    GRAPNEL_SINGLE_THREADED = 0,
    /* Other threads may be running the function. A handler for SIGTRAP is installed and stays; traps of others go on to
     * the handler that was there before. No thread has SIGTRAP blocked while it runs the function. */
    GRAPNEL_LIVE = 1,
};

/* Replaces a function. Calls of `target` go to `replacement`, which must have the same type. If `original` isn't NULL,
 * the function as it was, callable in its place, is stored there before the first call can reach the replacement; it
 * stays valid for good. If `hook` isn't NULL, the handle is stored there; otherwise the hook stays in for good. */
grapnel_error *grapnel_replace(void *target, void *replacement, enum grapnel_liveness liveness, void **original,
                               grapnel_hook **hook);

/* Takes a hook out and frees the handle. The function is then as it was before, byte for byte. If it fails, for instance
 * because someone else has patched the function meanwhile, nothing has changed and the handle stays valid. */
grapnel_error *grapnel_remove(grapnel_hook *hook, enum grapnel_liveness liveness);

/* Finds a function in a loaded object. `object` is how the object's file name begins ("libc.so"), or NULL for the first
 * object that defines the name. An indirect function (IFUNC) is resolved to what is really called. `size` may be NULL.
 * No object may be loaded or unloaded meanwhile. */
grapnel_error *grapnel_find(const char *object, const char *name, void **address, size_t *size);

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
