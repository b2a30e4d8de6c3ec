/* Keeps the compiler from proving that an allocation has no effect. */
#ifndef KEEP_H
#define KEEP_H
static inline void *keep(void *block) {
    __asm__ volatile("" : "+r"(block) : : "memory");
    return block;
}
#define NOINLINE __attribute__((noinline, noclone))
#endif
