/* grapnel_heap.h: tells Grapnel, a heap profiler, of what a program's own pools and arenas give out.
 *
 * All of it is in this file; there is nothing to link with. Where the program doesn't run under `grapnel run`, each call is
 * a load and a branch that is not taken. That is also so in a program that is linked statically, and where the compiler or
 * the system has no ELF.
 *
 *     #include "grapnel_heap.h"
 *
 *     pool->heap = grapnel_heap_create("syntax tree");
 *     ...
 *     void *node = take_from(pool, size);
 *     grapnel_heap_alloc(pool->heap, node, size);
 *     ...
 *     grapnel_heap_free(pool->heap, node);
 *     give_back_to(pool, node);
 *     ...
 *     grapnel_heap_destroy(pool->heap);
 *
 * A pool is a heap of its own: its figures and stacks are shown by its name, apart from those of malloc, which may well have
 * given the memory that the pool divides. Pools of the same name are shown together.
 *
 * Any thread may call any of these at any time, in signal handlers too. errno stays as it is. C and C++.
 *
 * This file may be copied into any program: SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef GRAPNEL_HEAP_H
#define GRAPNEL_HEAP_H

#include <stddef.h>
#include <stdint.h>

/* The version of the interface in this file. Later ones add to it. */
#define GRAPNEL_HEAP_VERSION 2

/* A pool. 0 is none: what is told of it is nobody's. */
typedef uint64_t grapnel_heap;

/* What Grapnel offers a program. Later versions have more members at the end. */
struct grapnel_interface {
    uint32_t version;
    uint32_t bytes;
    grapnel_heap (*create)(const char *name);
    void (*destroy)(grapnel_heap heap);
    void (*reset)(grapnel_heap heap);
    void (*alloc)(grapnel_heap heap, const void *block, size_t size);
    void (*free)(grapnel_heap heap, const void *block);
    void (*realloc)(grapnel_heap heap, const void *old, const void *block, size_t size);
    /* Since version 2. */
    void (*mark)(const char *name);
    void (*snapshot)(void);
    void (*pause)(void);
    void (*resume)(void);
};

#if defined(__ELF__) && defined(__linux__) && defined(__GNUC__)

#ifdef __cplusplus
extern "C" {
#endif

/* Where Grapnel stores a pointer to its interface. It finds this word by a note that each object has in its file; the
 * linker keeps one of each per object, however many sources include this file. */
extern const struct grapnel_interface *grapnel_heap_slot __attribute__((visibility("hidden")));

#if UINTPTR_MAX > 0xffffffffu
#define GRAPNEL_HEAP_WORD "8"
#else
#define GRAPNEL_HEAP_WORD "4"
#endif

/* Link-time optimisation puts several sources into one. */
__asm__(".ifndef grapnel_heap_slot\n"
        ".pushsection .bss.grapnel_heap_slot,\"awG\",%nobits,grapnel_heap_slot,comdat\n"
        ".balign " GRAPNEL_HEAP_WORD "\n"
        ".weak grapnel_heap_slot\n"
        ".hidden grapnel_heap_slot\n"
        ".type grapnel_heap_slot,%object\n"
        ".size grapnel_heap_slot," GRAPNEL_HEAP_WORD "\n"
        "grapnel_heap_slot:\n"
        ".zero " GRAPNEL_HEAP_WORD "\n"
        ".popsection\n"
        /* Name, type 1, where the slot lies from here, the version. */
        ".pushsection .note.grapnel,\"aG\",%note,grapnel_heap_slot,comdat\n"
        ".balign 4\n"
        ".long 8, 8, 1\n"
        ".asciz \"Grapnel\"\n"
        ".long grapnel_heap_slot - .\n"
        ".long 1\n"
        ".popsection\n"
        ".endif\n");

static __inline__ const struct grapnel_interface *grapnel_heap_interface(void) {
    const struct grapnel_interface *grapnel = __atomic_load_n(&grapnel_heap_slot, __ATOMIC_ACQUIRE);
    return __builtin_expect(grapnel != 0, 0) ? grapnel : (const struct grapnel_interface *)0;
}

/* A new pool. Of its name, 48 bytes are kept. 65,535 pools can be told apart at a time; beyond that, 0 is returned. */
static __inline__ grapnel_heap grapnel_heap_create(const char *name) {
    const struct grapnel_interface *grapnel = grapnel_heap_interface();
    return grapnel ? grapnel->create(name) : 0;
}

/* The pool is no more, nor is any of its blocks. To be called before their memory is given back. */
static __inline__ void grapnel_heap_destroy(grapnel_heap heap) {
    const struct grapnel_interface *grapnel = grapnel_heap_interface();
    if (grapnel)
        grapnel->destroy(heap);
}

/* All blocks of the pool are freed; the pool goes on. To be called before any of their memory is used again. */
static __inline__ void grapnel_heap_reset(grapnel_heap heap) {
    const struct grapnel_interface *grapnel = grapnel_heap_interface();
    if (grapnel)
        grapnel->reset(heap);
}

/* The pool gave out a block. To be called after it did. */
static __inline__ void grapnel_heap_alloc(grapnel_heap heap, const void *block, size_t size) {
    const struct grapnel_interface *grapnel = grapnel_heap_interface();
    if (grapnel)
        grapnel->alloc(heap, block, size);
}

/* The pool takes a block back. To be called before anybody else can get it. */
static __inline__ void grapnel_heap_free(grapnel_heap heap, const void *block) {
    const struct grapnel_interface *grapnel = grapnel_heap_interface();
    if (grapnel)
        grapnel->free(heap, block);
}

/* The pool exchanged a block for one of another size, perhaps at the same address. To be called before anybody else can get
 * the old one. An exchange that failed is not told of. */
static __inline__ void grapnel_heap_realloc(grapnel_heap heap, const void *old, const void *block, size_t size) {
    const struct grapnel_interface *grapnel = grapnel_heap_interface();
    if (grapnel)
        grapnel->realloc(heap, old, block, size);
}

/* Gives this moment a name, by which reports and queries know it. Of the name, 128 bytes are kept. */
static __inline__ void grapnel_mark(const char *name) {
    const struct grapnel_interface *grapnel = grapnel_heap_interface();
    if (grapnel && grapnel->version >= 2)
        grapnel->mark(name);
}

/* Asks for a snapshot: a trace of all up to here, written beside the trace. It is written by another process, while this
 * one goes on; of several that are asked for at once there may be fewer. */
static __inline__ void grapnel_snapshot(void) {
    const struct grapnel_interface *grapnel = grapnel_heap_interface();
    if (grapnel && grapnel->version >= 2)
        grapnel->snapshot();
}

/* From here on what is allocated is left out, in this thread at once, in others within some hundred events of theirs.
 * Frees are recorded all the time; a block that is reallocated leaves the record. */
static __inline__ void grapnel_pause(void) {
    const struct grapnel_interface *grapnel = grapnel_heap_interface();
    if (grapnel && grapnel->version >= 2)
        grapnel->pause();
}

/* What is allocated is recorded again. */
static __inline__ void grapnel_resume(void) {
    const struct grapnel_interface *grapnel = grapnel_heap_interface();
    if (grapnel && grapnel->version >= 2)
        grapnel->resume();
}

#ifdef __cplusplus
}
#endif

#else

#define grapnel_heap_create(name) ((void)(name), (grapnel_heap)0)
#define grapnel_heap_destroy(heap) ((void)(heap))
#define grapnel_heap_reset(heap) ((void)(heap))
#define grapnel_heap_alloc(heap, block, size) ((void)(heap), (void)(block), (void)(size))
#define grapnel_heap_free(heap, block) ((void)(heap), (void)(block))
#define grapnel_heap_realloc(heap, old, block, size) ((void)(heap), (void)(old), (void)(block), (void)(size))
#define grapnel_mark(name) ((void)(name))
#define grapnel_snapshot() ((void)0)
#define grapnel_pause() ((void)0)
#define grapnel_resume() ((void)0)

#endif

#endif
