/* Inline hooks and trampolines for live code: the C interface.
 *
 * Every function that can fail returns NULL when it succeeded, else an error that the caller frees with
 * grapnel_error_free. An error says what was found where, and what could be done instead. Each function says below what
 * makes it fail, what its caller answers for, and which threads may call it. What several threads do at once is put in no
 * order: who comes second waits, and after some seconds is told by an error that hooks are being changed.
 *
 * To compile and link: cc program.c $(pkg-config --cflags --libs grapnel-hook)
 *
 * The library stays in memory once it is loaded: hooked functions and handlers of signals lead into it. What contains the
 * static library must stay as well: link with -Wl,-z,nodelete, as pkg-config --static --libs says.
 */

#ifndef GRAPNEL_HOOK_H
#define GRAPNEL_HOOK_H

/* Made from the library's sources. Change those. */

#include <stddef.h>
#include <stdint.h>

/**
 * Requests that are not committed yet.
 *
 * A batch does many with one synchronisation of all threads: the functions are patched, and what the out pointers point
 * to is written, by grapnel_commit.
 */
typedef struct grapnel_batch grapnel_batch;

/**
 * A call of a function, or a probed instruction, as a listener sees it. It is valid until the listener returns, in the
 * thread that the listener runs in. For NULL in its place the functions that take one answer 0 or NULL, and do nothing.
 */
typedef struct grapnel_call grapnel_call;

/**
 * Why something failed. Any thread may read it; it is freed with grapnel_error_free.
 */
typedef struct grapnel_error grapnel_error;

/**
 * Something that was attached: a replacement, a listener or a probe.
 */
typedef struct grapnel_hook grapnel_hook;

/**
 * A function whose importers are bound to another. One thread at a time uses it.
 */
typedef struct grapnel_rebinding grapnel_rebinding;

/**
 * A hook that waits for its object, or is in. One thread at a time uses it.
 */
typedef struct grapnel_wait grapnel_wait;

/**
 * Who is told: GRAPNEL_TO_UNWINDERS, GRAPNEL_TO_DEBUGGERS and GRAPNEL_TO_PERF, joined by |, or 0 for nobody.
 */
typedef unsigned int grapnel_audience;

/**
 * Who may be running a function while it is patched: GRAPNEL_SINGLE_THREADED or GRAPNEL_LIVE.
 */
typedef unsigned int grapnel_liveness;

/**
 * What is told of a call, or of a probed instruction. `data` is what was given when it was attached.
 *
 * It may run in any thread, also in several at once, must not throw, and keeps errno and the registers without doing
 * anything for it. Where it is told of a call that this library makes while it changes hooks, of malloc for instance, it
 * can't change any: that is answered with an error, which takes memory. So attach a listener of malloc that calls this library with
 * GRAPNEL_GUARDED, and none to what malloc calls under its lock (brk, sbrk, mprotect). It must not be hooked itself: where its code is seen to use general
 * registers only, no others are saved for it.
 */
typedef void (*grapnel_listener)(grapnel_call *call, void *data);

/**
 * How a listener or a probe is attached: GRAPNEL_GUARDED, GRAPNEL_VECTORS and GRAPNEL_GENERAL_ONLY, joined by |, or 0.
 */
typedef unsigned int grapnel_flags;

#if defined(__aarch64__)
/**
 * The general registers of a call or of a probed place.
 *
 * At a function's entry `x16` and `x17` are what the way to the listener left in them (AAPCS64, 6.1.1), and `x30` is the
 * return address; changes of the three are ignored there, and of `x16` and `x30` where it has returned.
 */
typedef struct {
    /**
     * X0 to X30.
     */
    uint64_t x[31];
    /**
     * Changes of it are ignored.
     */
    uint64_t sp;
    /**
     * The probed instruction, the function's entry, or where it returns to. Changes of it are ignored.
     */
    uint64_t pc;
    /**
     * NZCV, in probes only. At a function's entry and return the ABI gives the flags no meaning, and they read as 0.
     */
    uint64_t pstate;
} grapnel_registers;
#endif

#if defined(__arm__)
/**
 * The general registers of a call or of a probed place.
 *
 * At a function's entry `r12` is what the way to the listener left in it (AAPCS32, 6.1.1), and `r14` is the return address;
 * changes of the two are ignored there and where it has returned.
 */
typedef struct {
    /**
     * R0 to R12, SP, LR and PC. Changes of SP and PC are ignored. PC is the probed instruction, the function's entry, or
     * where it returns to.
     */
    uint32_t r[16];
    /**
     * The flags, in probes only. At a function's entry and return the ABI gives them no meaning, and they read as 0.
     */
    uint32_t cpsr;
} grapnel_registers;
#endif

#if defined(__x86_64__)
/**
 * The general registers of a call or of a probed place.
 */
typedef struct {
    uint64_t rax;
    uint64_t rcx;
    uint64_t rdx;
    uint64_t rbx;
    /**
     * Changes of it are ignored.
     */
    uint64_t rsp;
    uint64_t rbp;
    uint64_t rsi;
    uint64_t rdi;
    uint64_t r8;
    uint64_t r9;
    uint64_t r10;
    uint64_t r11;
    uint64_t r12;
    uint64_t r13;
    uint64_t r14;
    uint64_t r15;
    /**
     * In probes only. At a function's entry and return the ABI gives the flags no meaning, and they read as 0.
     */
    uint64_t rflags;
    /**
     * The probed instruction, the function's entry, or where it returns to. Changes of it are ignored.
     */
    uint64_t rip;
} grapnel_registers;
#endif

/**
 * Ways of making memory for code and of writing code, joined by |. None ever makes memory that is writable and executable
 * at once.
 */
typedef unsigned int grapnel_ways;

/**
 * What became of what was removed.
 */
typedef struct {
    /**
     * How many bytes were freed.
     */
    size_t freed;
    /**
     * How many were kept, because a thread is in them or may come to them.
     */
    size_t kept;
    /**
     * How many removed listeners still wait for calls to leave, or may just be told of one.
     */
    size_t awaited;
    /**
     * The thread that didn't answer, or that was not on its own stack. All was kept then; 0 if there is none.
     */
    int unknown;
} grapnel_reclaimed;

/**
 * Where a hook that waits stands.
 */
typedef unsigned int grapnel_wait_state;

/**
 * Unwind entries, for the unwinders that are loaded: exceptions pass every call that was relocated (grapnel_attach says which
 * they pass in any case), and a backtrace from a signal handler passes every instruction of a stub or a trampoline. libgcc's
 * unwinder takes a lock in each step from then on (until GCC 13), so don't use it where a handler may interrupt its own
 * thread's unwinding and ask for a backtrace. On 32-bit Arm unwinders take none, and this is answered with an error.
 */
#define GRAPNEL_TO_UNWINDERS 1

/**
 * Names and unwind entries for debuggers, by the interface for code that is made at run time.
 */
#define GRAPNEL_TO_DEBUGGERS 2

/**
 * Names for perf, in /tmp/perf-PID.map, which is left there.
 */
#define GRAPNEL_TO_PERF 4

/**
 * No other thread runs. Nearly every function that can be hooked at all can be hooked so. Calls of the function may be
 * under way; where one may return into the bytes that are overwritten, a trap catches it, as with GRAPNEL_LIVE.
 */
#define GRAPNEL_SINGLE_THREADED 0

/**
 * Other threads may be running the function. A handler for SIGTRAP is installed and stays; traps of others go on to the
 * handler that was there before. The same holds for SIGBUS on 32-bit Arm, by which some kernels tell of breakpoints in T32
 * code, and on x86-64 for SIGILL in programs that are linked for addresses below 0.8 GiB (no PIE), as soon as one of their
 * functions needs it.
 *
 * Where grapnel_patch_way says GRAPNEL_REMAP, no trap goes over the function's start: a thread traps only if it was between
 * the first instructions of the function at that moment. Else, for a moment, everybody does who comes to the function. A
 * thread that traps with such a signal blocked is killed with its process, and nobody but the user can rule that out. glibc
 * blocks all signals where it ends a thread (where it runs madvise, munmap and sigprocmask), and in posix_spawn, system and
 * popen, also in their child, which has no handlers either (sigprocmask, sigaction, dup2, open, close, execve, munmap).
 * Handlers that were installed with SIGTRAP in their sa_mask block it, too. Without GRAPNEL_REMAP, hook what they run with
 * GRAPNEL_SINGLE_THREADED, before other threads begin, or while none of this goes on.
 *
 * A debugger must pass these signals on (gdb: "handle SIGTRAP nostop noprint pass", and it may still take some for its
 * own): patch with GRAPNEL_SINGLE_THREADED under one.
 */
#define GRAPNEL_LIVE 1

/**
 * While a guarded listener or probe runs in a thread, none is told of what that thread does.
 */
#define GRAPNEL_GUARDED 1

/**
 * Listeners: all vector registers are seen and kept in full. Without it, those that pass arguments and results are seen,
 * and of all the low 128 bits are kept. Probes always do this, unless told otherwise.
 */
#define GRAPNEL_VECTORS 2

/**
 * Probes: the listener and what it calls use general registers only. Several times as fast on x86-64, unless its code shows
 * this by itself. For guarded probes, and on other machines, all are saved all the same.
 */
#define GRAPNEL_GENERAL_ONLY 4

/**
 * Memory for code is one file in memory, mapped once to be executed and once to be written.
 */
#define GRAPNEL_TWO_VIEWS 1

/**
 * It is written through /proc/self/mem, and its protection never changes.
 */
#define GRAPNEL_PROC_MEM 2

/**
 * It is made writable and not executable, written, and made executable.
 */
#define GRAPNEL_PROTECT 4

/**
 * A changed copy of its pages takes their place. Memory for code is never made so.
 */
#define GRAPNEL_EXCHANGE 8

/**
 * It is written where it is, in pages that their owner may write. Memory for code is never made so.
 */
#define GRAPNEL_IN_PLACE 16

/**
 * Its pages, of the same file, are mapped anew, changed through /proc/self/mem, and take the place of those that are run.
 * Memory for code is never made so.
 */
#define GRAPNEL_REMAP 32

/**
 * No object of that name is loaded.
 */
#define GRAPNEL_WAITING 0

/**
 * The hook is in.
 */
#define GRAPNEL_IN 1

/**
 * The hook was in, and went when its object was unloaded. It waits for the next.
 */
#define GRAPNEL_UNLOADED 2

/**
 * An object of that name is loaded, and the hook can't be put in. It waits for the object to be unloaded.
 */
#define GRAPNEL_FAILED 3





#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Tells others of the code that hooks are made of, from the next commit on. Nobody is told if it isn't called.
 *
 * The code that others were told of is kept for good.
 *
 * # Errors
 * If a bit of `audience` is unknown, or somebody can't be told, for instance because no unwinder is loaded, or hooks are being changed at this moment. Nobody
 * is told then.
 *
 * # Safety
 * Any thread may call this, not a signal handler, while no object is loaded or unloaded. Objects with unwinders stay
 * loaded.
 */
grapnel_error *grapnel_announce(grapnel_audience audience);

/**
 * Replaces a function: calls of `target` go to `replacement`.
 *
 * What was attached last to a function is the outermost, and is reached first. If `original` isn't NULL, what
 * `replacement` replaces, callable in its place, is stored there before the first call can reach the replacement: what
 * was attached before, and within that the function. It stays valid when the hook is removed, until grapnel_reclaim is
 * called. If `hook` isn't NULL, the handle is stored there; otherwise the hook stays in for good.
 *
 * A call that is still in a replacement when that is removed and attached again, and reads the newer original, goes on
 * from the newer place in the order, and may pass a second time what it has passed.
 *
 * # Errors
 * If the function can't be hooked, `target` or `replacement` is NULL, or hooks are being changed at this moment by another
 * thread or around this call. Nothing has changed then, `hook` is NULL, and `original` is as it was.
 *
 * # Safety
 * `target` is the start of a function, to whose first instructions no other function branches. `replacement` has the
 * same type. Both stay loaded while the hook is in or a call is under way. `original` and `hook` are NULL or may be
 * written. What `liveness` says of other threads is so. Any thread may call this, not a signal handler.
 */
grapnel_error *grapnel_replace(void *target,
                               void *replacement,
                               grapnel_liveness liveness,
                               void **original,
                               grapnel_hook **hook);

/**
 * Tells a listener when a function is entered and when it has returned; one of `enter` and `leave` may be NULL.
 *
 * Exceptions and longjmp may pass a call that is listened to; it then has no return. A call among the instructions that the
 * patch overwrites moves: what is thrown out of it passes if it is the last of them and returns to the original behind it, as
 * on x86-64 and 32-bit Arm, and else only after grapnel_announce has told unwinders. On x86-64 a call through memory that isn't
 * relative to RIP, and each call where there is a hardware shadow stack, returns to the moved code. There is room for some
 * thousand calls whose return is awaited (grapnel_missed).
 *
 * # Errors
 * As grapnel_replace; also if both `enter` and `leave` are NULL or a flag is unknown, if the return is asked for in a process that has a hardware shadow stack, or vector
 * registers on a processor that can't save them.
 *
 * # Safety
 * As grapnel_replace. The function returns once for each call (unlike setjmp and vfork), and doesn't look at its own
 * return address. The listener and `data` stay valid until the hook was removed and no call is under way.
 */
grapnel_error *grapnel_attach(void *target,
                              grapnel_listener enter,
                              grapnel_listener leave,
                              void *data,
                              grapnel_flags flags,
                              grapnel_liveness liveness,
                              grapnel_hook **hook);

/**
 * Tells a listener when the instruction at `at` is about to run.
 *
 * The whole function around it is looked at for branches into the instructions that are patched: it has `size` bytes at
 * `function`, or, if that is NULL, is found in its object's unwind table.
 *
 * # Errors
 * As grapnel_replace; also if `hit` is NULL or a flag is unknown.
 *
 * # Safety
 * As grapnel_replace and grapnel_attach. An instruction begins at `at`, and no code outside the function branches to
 * those behind it. With GRAPNEL_GENERAL_ONLY, `hit` and all that it calls leave the vector registers alone.
 */
grapnel_error *grapnel_probe(void *at,
                             void *function,
                             size_t size,
                             grapnel_listener hit,
                             void *data,
                             grapnel_flags flags,
                             grapnel_liveness liveness,
                             grapnel_hook **hook);

/**
 * Takes a hook out and frees the handle.
 *
 * When it was the last on its function, that is then as it was before, byte for byte; if the function is gone with its
 * library, nothing is written. Calls that are under way may still be in the listener or the replacement.
 *
 * # Errors
 * If someone else has patched the function meanwhile, it can't be written, or hooks are being changed at this moment.
 * Nothing has changed then, and the handle stays valid. If the handle is from before a fork during which another thread
 * changed hooks: it stays valid too, but the hook is in for good.
 *
 * # Safety
 * `hook` was stored by a function of this library and wasn't removed. What `liveness` says of other threads is so. Any
 * thread may call this, not a signal handler.
 */
grapnel_error *grapnel_remove(grapnel_hook *hook,
                              grapnel_liveness liveness);

/**
 * Begins a batch. It is freed by grapnel_commit or grapnel_abandon.
 *
 * # Errors
 * None.
 *
 * # Safety
 * Any thread may call this, and one thread at a time may use the batch.
 */
grapnel_batch *grapnel_begin(void);

/**
 * Frees a batch, and commits nothing. NULL is allowed.
 *
 * # Errors
 * None.
 *
 * # Safety
 * `batch` came from grapnel_begin and wasn't committed or abandoned; no other thread uses it.
 */
void grapnel_abandon(grapnel_batch *batch);

/**
 * Asks for what grapnel_replace does. Nothing if `batch` is NULL, for which grapnel_commit has an error.
 *
 * # Errors
 * grapnel_commit answers for it.
 *
 * # Safety
 * As grapnel_replace, at the commit; until then, one thread at a time uses the batch.
 */
void grapnel_batch_replace(grapnel_batch *batch,
                           void *target,
                           void *replacement,
                           void **original,
                           grapnel_hook **hook);

/**
 * Asks for what grapnel_attach does. Nothing if `batch` is NULL.
 *
 * # Errors
 * grapnel_commit answers for it.
 *
 * # Safety
 * As grapnel_attach, at the commit; until then, one thread at a time uses the batch.
 */
void grapnel_batch_attach(grapnel_batch *batch,
                          void *target,
                          grapnel_listener enter,
                          grapnel_listener leave,
                          void *data,
                          grapnel_flags flags,
                          grapnel_hook **hook);

/**
 * Asks for what grapnel_probe does. Nothing if `batch` is NULL.
 *
 * # Errors
 * grapnel_commit answers for it.
 *
 * # Safety
 * As grapnel_probe, at the commit; until then, one thread at a time uses the batch.
 */
void grapnel_batch_probe(grapnel_batch *batch,
                         void *at,
                         void *function,
                         size_t size,
                         grapnel_listener hit,
                         void *data,
                         grapnel_flags flags,
                         grapnel_hook **hook);

/**
 * Asks for what grapnel_remove does. Nothing if `batch` is NULL. A `hook` that is NULL is passed over.
 *
 * # Errors
 * grapnel_commit answers for it.
 *
 * # Safety
 * As grapnel_remove, at the commit; until then, one thread at a time uses the batch.
 */
void grapnel_batch_remove(grapnel_batch *batch, grapnel_hook *hook);

/**
 * Does all that a batch asks for, and frees the batch.
 *
 * One request that fails doesn't keep the others out.
 *
 * Hooks work on in a child made by fork. If another thread was just changing hooks then, the child can't take out what was
 * in before: handles from before the fork are answered with an error.
 *
 * # Errors
 * That of the first request that failed. For each that failed, its handle is NULL, or stays valid if it was to be removed,
 * and its `original` is as it was, unless the patching itself failed; then it was stored, and is good to call. If hooks are being
 * changed at this moment by another thread or around this call, all have failed. If `batch` is NULL, there is none.
 *
 * # Safety
 * `batch` came from grapnel_begin and wasn't committed or abandoned. What each request says of its functions and out pointers
 * is so, and what `liveness` says of other threads. Any thread may call this, not a signal handler.
 */
grapnel_error *grapnel_commit(grapnel_batch *batch,
                              grapnel_liveness liveness);

/**
 * The registers, to be read and changed.
 *
 * # Errors
 * None.
 *
 * # Safety
 * `call` is what the listener was passed. The registers are valid until it returns.
 */
grapnel_registers *grapnel_call_registers(grapnel_call *call);

/**
 * On entry: an integer or pointer argument by its number from 0, in registers or memory.
 *
 * # Errors
 * None.
 *
 * # Safety
 * `call` is what the listener was passed, on entry, and the function has that many arguments.
 */
uint64_t grapnel_argument(grapnel_call *call, unsigned int index);

/**
 * On entry: changes an argument.
 *
 * # Errors
 * None.
 *
 * # Safety
 * As grapnel_argument.
 */
void grapnel_set_argument(grapnel_call *call, unsigned int index, uint64_t value);

/**
 * On leaving: the integer or pointer result.
 *
 * # Errors
 * None.
 *
 * # Safety
 * `call` is what the listener was passed, on leaving.
 */
uint64_t grapnel_result(grapnel_call *call);

/**
 * On leaving: changes the result.
 *
 * # Errors
 * None.
 *
 * # Safety
 * As grapnel_result.
 */
void grapnel_set_result(grapnel_call *call, uint64_t value);

/**
 * On entry: sets a word that is kept until the same call leaves.
 *
 * # Errors
 * None.
 *
 * # Safety
 * `call` is what the listener was passed, on entry.
 */
void grapnel_set_word(grapnel_call *call, uint64_t word);

/**
 * On leaving: the word that was set on entry of the same call, else 0.
 *
 * # Errors
 * None.
 *
 * # Safety
 * `call` is what the listener was passed, on leaving.
 */
uint64_t grapnel_word(grapnel_call *call);

/**
 * The low 128 bits of a vector register, as two words, the lowest first.
 *
 * # Errors
 * 0 if the register wasn't saved, else 1.
 *
 * # Safety
 * `call` is what the listener was passed, and two words may be written at `value`.
 */
int grapnel_vector(grapnel_call *call, unsigned int index, uint64_t *value);

/**
 * Changes the low 128 bits of a vector register.
 *
 * # Errors
 * 0 if the register wasn't saved, else 1.
 *
 * # Safety
 * `call` is what the listener was passed, and two words can be read at `value`.
 */
int grapnel_set_vector(grapnel_call *call, unsigned int index, const uint64_t *value);

/**
 * How many calls and returns no listener was told of, in the whole process, for want of a place for what is kept about
 * calls under way.
 *
 * # Errors
 * None.
 *
 * # Safety
 * Any thread may ask, also a listener or a signal handler.
 */
uint64_t grapnel_missed(void);

/**
 * What went wrong, as one sentence. Valid until the error is freed. "no error" for NULL.
 *
 * # Errors
 * None.
 *
 * # Safety
 * `error` is NULL or came from a function of this library and wasn't freed. Any thread may ask.
 */
const char *grapnel_error_message(const grapnel_error *error);

/**
 * What could be done instead. Valid until the error is freed. Empty for NULL.
 *
 * # Errors
 * None.
 *
 * # Safety
 * As grapnel_error_message.
 */
const char *grapnel_error_remedy(const grapnel_error *error);

/**
 * The address that the error is about: of the offending instruction, if there is one. 0 if there is none.
 *
 * # Errors
 * None.
 *
 * # Safety
 * As grapnel_error_message.
 */
uint64_t grapnel_error_address(const grapnel_error *error);

/**
 * Frees an error. NULL is allowed.
 *
 * # Errors
 * None.
 *
 * # Safety
 * As grapnel_error_message; no thread uses the error afterwards.
 */
void grapnel_error_free(grapnel_error *error);

/**
 * Finds a function in a loaded object.
 *
 * `object` is how the object's file name begins ("libc.so"), its soname or the end of its path, or NULL for the first
 * object that defines the name. `name` may ask for a version ("memcpy@GLIBC_2.2.5"). A function that isn't exported is
 * looked for in the symbol tables of the object's file, of its debug file and in its .gnu_debugdata, if these files
 * belong to what is loaded. An indirect function (IFUNC) is resolved to what is really called, and `size` is
 * the length of that, or 0 if it isn't known. `size` may be NULL.
 *
 * # Errors
 * If no such object is loaded, or none defines the name, or `name` or `address` is NULL; `address` and `size` are as they were.
 *
 * # Safety
 * `object` is NULL or a string, `name` is a string, `address` may be written, and `size` may or is NULL. Any thread may
 * call this, while no object is loaded or unloaded.
 */
grapnel_error *grapnel_find(const char *object,
                            const char *name,
                            void **address,
                            size_t *size);

/**
 * Finds the function around an address: its name, cut to `room` bytes with the zero at its end, or "" if no symbol table
 * has one; where it begins, and how long it is. Each may be NULL.
 *
 * # Errors
 * If no function is known there; the out pointers are as they were.
 *
 * # Safety
 * `name` is NULL or `room` bytes may be written there; `start` and `size` are NULL or may be written. Any thread may
 * call this, while no object is loaded or unloaded.
 */
grapnel_error *grapnel_find_at(const void *address,
                               char *name,
                               size_t room,
                               void **start,
                               size_t *size);

/**
 * The ways in which memory for code was made so far: by default the first of GRAPNEL_PROC_MEM, GRAPNEL_TWO_VIEWS and
 * GRAPNEL_PROTECT that the system allows. 0 if none was made, or while hooks are being changed.
 *
 * # Errors
 * None.
 *
 * # Safety
 * Any thread may call this, not a signal handler.
 */
grapnel_ways grapnel_code_ways(void);

/**
 * How the patch of a hooked function, or of a probed instruction, was written: GRAPNEL_PROC_MEM, GRAPNEL_IN_PLACE,
 * GRAPNEL_PROTECT, GRAPNEL_EXCHANGE or GRAPNEL_REMAP. 0 if there is none, or while hooks are being changed.
 *
 * # Errors
 * None.
 *
 * # Safety
 * `target` is only compared. Any thread may call this, not a signal handler.
 */
grapnel_ways grapnel_patch_way(const void *target);

/**
 * Frees what was removed and what no thread can reach any more. The rest is kept, and can be asked for again. If
 * `reclaimed` isn't NULL, what became of it is stored there.
 *
 * With GRAPNEL_LIVE every other thread is interrupted once by a signal that the program has no handler for; a system call
 * that the kernel doesn't begin anew by itself may answer EINTR then. No thread waits for another.
 *
 * # Errors
 * If hooks are being changed at this moment, by another thread or around this call. Nothing was freed then.
 *
 * # Safety
 * `reclaimed` is NULL or may be written. No original of a removed replacement is called any more, and no thread is in a
 * replacement that will. No coroutine that isn't running was left in a listener or in a function's first instructions.
 * With GRAPNEL_SINGLE_THREADED no other thread is in a call that something removed had to do with. Any thread may call
 * this, not a signal handler.
 */
grapnel_error *grapnel_reclaim(grapnel_liveness liveness,
                               grapnel_reclaimed *reclaimed);

/**
 * Binds all importers of a function to `replacement`: every word of the loaded objects that the dynamic linker filled
 * with the function's address is changed, and no code.
 *
 * All objects that define the name count, also those that were loaded with RTLD_LOCAL or define a function of their own
 * by that name; `original` is that of the first. Calls that don't go through such a word aren't seen. The function is
 * stored in `original` first, and the handle in `rebinding`; either may be NULL.
 *
 * # Errors
 * If no object defines the name, or it or `replacement` is NULL: nothing has changed, and the out pointers are as they were. If a word holds something
 * else, or can't be written, it is left alone and the others are changed; `rebinding` is then stored all the same.
 *
 * # Safety
 * `name` is a string and `replacement` a function of its type, which stays loaded; `original` and `rebinding` are NULL
 * or may be written. Any thread may call this, while no object is loaded or unloaded.
 */
grapnel_error *grapnel_rebind(const char *name,
                              void *replacement,
                              void **original,
                              grapnel_rebinding **rebinding);

/**
 * Binds the importers of the function at an address to `replacement`, whatever else is called so. As grapnel_rebind.
 *
 * # Errors
 * If the address is in no object's code, or `replacement` is NULL: nothing has changed, and `rebinding` is as it was. Otherwise as grapnel_rebind;
 * also if a word isn't bound yet and may be bound to another function of the name: it is left alone.
 *
 * # Safety
 * `function` is the start of a function, `replacement` one of its type, which stays loaded; `rebinding` is NULL or may be
 * written. Any thread may call this, while no object is loaded or unloaded.
 */
grapnel_error *grapnel_rebind_function(void *function,
                                       void *replacement,
                                       grapnel_rebinding **rebinding);

/**
 * Carries a rebinding on to the objects that were loaded since, and to every object that is loaded from now on, before
 * its constructors run. With glibc that is so from version 2.31 on, and with musl; with others an object is rebound when
 * another is loaded or unloaded after it. What is found wrong with words of objects that are loaded later isn't told.
 *
 * # Errors
 * If the dynamic linker can't be followed, or hooks are being changed at this moment by another thread or around this
 * call: the rebinding stays as it was. If a word holds something else, or can't be written, it is left alone.
 *
 * # Safety
 * As grapnel_rebind_again. What `liveness` says of other threads is so, the first time that anything waits, for the
 * dynamic linker's functions.
 */
grapnel_error *grapnel_rebind_later(grapnel_rebinding *rebinding,
                                    grapnel_liveness liveness);

/**
 * Binds the objects that were loaded since, to be called after dlopen. With grapnel_rebind_later there is nothing to do.
 *
 * # Errors
 * If a word holds something else, or can't be written: it is left alone and the others are changed.
 *
 * # Safety
 * `rebinding` came from grapnel_rebind and wasn't undone. One thread at a time uses it, while no object is loaded or
 * unloaded.
 */
grapnel_error *grapnel_rebind_again(grapnel_rebinding *rebinding);

/**
 * How many words hold the replacement. 0 for NULL.
 *
 * # Errors
 * None. With grapnel_rebind_later, 0 if hooks are being changed at this moment by another thread or around this call.
 *
 * # Safety
 * As grapnel_rebind_again.
 */
size_t grapnel_rebound(const grapnel_rebinding *rebinding);

/**
 * Puts back what was in the words, and frees the handle. Of several rebindings of one function the newest is undone first: an
 * older one's replacement is what the newer found in the words, and puts back.
 *
 * # Errors
 * If a word holds something else by now, or can't be written: it is left alone and the others are put back. The handle
 * is freed all the same. With grapnel_rebind_later also if hooks are being changed at this moment by another thread or
 * around this call: nothing has changed then, and the handle stays valid.
 *
 * # Safety
 * As grapnel_rebind_again; the handle isn't used afterwards.
 */
grapnel_error *grapnel_unbind(grapnel_rebinding *rebinding);

/**
 * Replaces a function as soon as its object is loaded, before the object's constructors run; now, if it is loaded.
 *
 * `object` is a soname ("libz.so.1") or the end of the object's path ("plugins/filter.so"). Of several such objects the
 * first that has the function counts. `function` is found as by grapnel_find. What `replacement` replaces, callable in its
 * place, is stored in `original` each time that the hook goes in, before the first call can reach the replacement. When the
 * object is unloaded the hook goes with it, and waits again. Handles of grapnel_replace and the like for functions of that
 * object are then answered as if they had been removed. If `wait` is NULL, the hook waits for good.
 *
 * # Errors
 * If a name or `replacement` is NULL, the dynamic linker can't be followed, or the object is loaded and its function can't be found or hooked, or hooks
 * are being changed at this moment by another thread or around this call. Nothing waits then, and `wait` is NULL.
 *
 * # Safety
 * As grapnel_replace, whenever an object of that name is loaded; `original` is NULL or may be written until the wait is
 * ended. What `liveness` says of other threads is so if the object is loaded now, and, the first time that anything waits,
 * for the dynamic linker's functions. Any thread may call this, not a signal handler.
 */
grapnel_error *grapnel_wait_replace(const char *object,
                                    const char *function,
                                    void *replacement,
                                    grapnel_liveness liveness,
                                    void **original,
                                    grapnel_wait **wait);

/**
 * Tells a listener of the calls of a function as soon as its object is loaded, before the object's constructors run; now,
 * if it is loaded. As grapnel_attach and grapnel_wait_replace.
 *
 * # Errors
 * As grapnel_wait_replace.
 *
 * # Safety
 * As grapnel_attach and grapnel_wait_replace.
 */
grapnel_error *grapnel_wait_attach(const char *object,
                                   const char *function,
                                   grapnel_listener enter,
                                   grapnel_listener leave,
                                   void *data,
                                   grapnel_flags flags,
                                   grapnel_liveness liveness,
                                   grapnel_wait **wait);

/**
 * Says where a hook that waits stands, in `state`: GRAPNEL_WAITING, GRAPNEL_IN, GRAPNEL_UNLOADED or GRAPNEL_FAILED. With
 * GRAPNEL_IN and GRAPNEL_UNLOADED, `function` is where its function is or was, else NULL. Either may be NULL.
 *
 * # Errors
 * With GRAPNEL_FAILED, the reason. Otherwise, if hooks are being changed at this moment by another thread or around this
 * call, or were when this process was forked: `state` and `function` are as they were.
 *
 * # Safety
 * `wait` came from grapnel_wait_replace or grapnel_wait_attach and wasn't ended; `state` and `function` are NULL or may be
 * written. Any thread may call this, not a signal handler.
 */
grapnel_error *grapnel_wait_status(const grapnel_wait *wait,
                                   grapnel_wait_state *state,
                                   void **function);

/**
 * Takes the hook out if it is in, has it wait no more, and frees the handle.
 *
 * # Errors
 * If the hook can't be taken out, as with grapnel_remove: nothing has changed, and the handle stays valid.
 *
 * # Safety
 * `wait` came from grapnel_wait_replace or grapnel_wait_attach and wasn't ended. What `liveness` says of other threads is
 * so. Any thread may call this, not a signal handler.
 */
grapnel_error *grapnel_wait_end(grapnel_wait *wait,
                                grapnel_liveness liveness);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GRAPNEL_HOOK_H */
