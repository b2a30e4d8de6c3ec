/* A library for load_in_child.c, built three times. On x86-64 its operators begin with instructions that are none of the commonest, so
 * that whoever hooks them has to look closely. */
#include <stddef.h>

static char pool[1 << 16];
static size_t used;

__attribute__((used)) static void *give(size_t size) {
    return pool + __atomic_fetch_add(&used, (size + 15) & ~(size_t)15, __ATOMIC_RELAXED) % (sizeof pool / 2);
}

__attribute__((used)) static void take(void *block) {
    (void)block;
}

#ifdef __x86_64__
__asm__(".text\n"
        ".globl _Znwm, _ZdlPv\n"
        ".type _Znwm, @function\n"
        ".type _ZdlPv, @function\n"
        ".p2align 4\n"
        "_Znwm: vpxor %xmm0, %xmm0, %xmm0\n"
        "vpaddd %xmm1, %xmm1, %xmm1\n"
        "vzeroupper\n"
        "jmp give\n"
        ".size _Znwm, . - _Znwm\n"
        ".p2align 4\n"
        "_ZdlPv: vpxor %xmm0, %xmm0, %xmm0\n"
        "vpaddd %xmm1, %xmm1, %xmm1\n"
        "vzeroupper\n"
        "jmp take\n"
        ".size _ZdlPv, . - _ZdlPv\n");
#else
__asm__(".globl _Znwm, _ZdlPv\n");
void *new_of_this(size_t size) __asm__("_Znwm");
void delete_of_this(void *block) __asm__("_ZdlPv");
void *new_of_this(size_t size) {
    return give(size);
}
void delete_of_this(void *block) {
    take(block);
}
#endif
