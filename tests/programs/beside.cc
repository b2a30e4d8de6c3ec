// Functions of an allocator, of a family with a prefix, and operators of C++, in assembly: they change RAX, or nothing, and
// their caller counts on it, as compilers do that see both. Each is called with all registers full, and they are compared. Three
// calls in seven are made with a stack that isn't aligned.
#include "keep.h"
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>

extern "C" {
struct State {
    // RAX, RBX, RCX, RDX, RSI, RDI, RBP, R8 to R15; YMM0 to YMM15.
    uint64_t whole[16];
    uint64_t vectors[16][4];
};
void call_full(void (*function)(), const State *before, State *after);
extern unsigned char has_avx;
extern void (*behind)();
void not_aligned();

void do_malloc() asm("malloc");
void do_calloc() asm("calloc");
void do_realloc() asm("realloc");
void do_free() asm("free");
void do_memalign() asm("memalign");
void do_aligned_alloc() asm("aligned_alloc");
void do_posix_memalign() asm("posix_memalign");
void do_valloc() asm("valloc");
void do_beside_malloc() asm("beside_malloc");
void do_beside_calloc() asm("beside_calloc");
void do_beside_realloc() asm("beside_realloc");
void do_beside_free() asm("beside_free");
void do_beside_memalign() asm("beside_memalign");
void do__Znwm() asm("_Znwm");
void do__ZnwmSt11align_val_t() asm("_ZnwmSt11align_val_t");
void do__ZdlPv() asm("_ZdlPv");
void do__ZdlPvm() asm("_ZdlPvm");
}

// Gives the size in RAX on, rounded.
#define GIVE "add rax, 31\nand rax, -16\nxadd [rip + next], rax\n"
#define ALIGN(in) "add rax, " in "\n" GIVE "add rax, " in "\ndec rax\nneg " in "\nand rax, " in "\nneg " in "\n"
#define FUNCTION(name, code)                                                                                                 \
    ".balign 16\n.globl " name "\n.type " name ", @function\n" name ":\n.cfi_startproc\n" code                           \
    "ret\n.cfi_endproc\n.size " name ", . - " name "\n"
#define FAMILY(prefix)                                                                                                       \
    FUNCTION(prefix "malloc", "mov rax, rdi\n" GIVE)                                                                         \
    FUNCTION(prefix "calloc", "mov rax, rdi\nimul rax, rsi\n" GIVE)                                                          \
    FUNCTION(prefix "realloc", "mov rax, rsi\n" GIVE)                                                                        \
    FUNCTION(prefix "free", "")                                                                                              \
    FUNCTION(prefix "memalign", "mov rax, rsi\n" ALIGN("rdi"))

asm(".intel_syntax noprefix\n.text\n"
    FAMILY("")
    FAMILY("beside_")
    FUNCTION("aligned_alloc", "mov rax, rsi\n" ALIGN("rdi"))
    FUNCTION("posix_memalign", "mov rax, rdx\n" ALIGN("rsi") "mov [rdi], rax\nxor eax, eax\n")
    FUNCTION("valloc", "lea rax, [rdi + 4096]\n" GIVE "add rax, 4095\nand rax, -4096\n")
    FUNCTION("_Znwm", "mov rax, rdi\n" GIVE)
    FUNCTION("_ZnwmSt11align_val_t", "mov rax, rdi\n" ALIGN("rsi"))
    FUNCTION("_ZdlPv", "")
    FUNCTION("_ZdlPvm", "")
    FUNCTION("not_aligned", "call [rip + behind]\n")
    R"(
    .balign 16
    .globl call_full
    .type call_full, @function
call_full:
    .cfi_startproc
    push rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbx, 0
    push rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbp, 0
    push r12
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset r12, 0
    push r13
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset r13, 0
    push r14
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset r14, 0
    push r15
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset r15, 0
    push rdx
    .cfi_adjust_cfa_offset 8
    mov [rip + callee], rdi
    mov rax, rsi
    .macro vectors each, number=0
    \each \number
    .if \number - 15
    vectors \each, %(\number + 1)
    .endif
    .endm
    .macro fill number
    vmovups ymm\number, [rax + 128 + 32 * \number]
    .endm
    .macro fill_half number
    movups xmm\number, [rax + 128 + 32 * \number]
    .endm
    .macro take number
    vmovups [rax + 128 + 32 * \number], ymm\number
    .endm
    .macro take_half number
    movups [rax + 128 + 32 * \number], xmm\number
    .endm
    .altmacro
    cmp byte ptr [rip + has_avx], 0
    je 1f
    vectors fill
    jmp 2f
1:  vectors fill_half
2:  mov rbx, [rax + 8]
    mov rcx, [rax + 16]
    mov rdx, [rax + 24]
    mov rsi, [rax + 32]
    mov rdi, [rax + 40]
    mov rbp, [rax + 48]
    mov r8, [rax + 56]
    mov r9, [rax + 64]
    mov r10, [rax + 72]
    mov r11, [rax + 80]
    mov r12, [rax + 88]
    mov r13, [rax + 96]
    mov r14, [rax + 104]
    mov r15, [rax + 112]
    mov rax, [rax]
    call [rip + callee]
    mov [rip + callee], rax
    mov rax, [rsp]
    mov [rax + 8], rbx
    mov [rax + 16], rcx
    mov [rax + 24], rdx
    mov [rax + 32], rsi
    mov [rax + 40], rdi
    mov [rax + 48], rbp
    mov [rax + 56], r8
    mov [rax + 64], r9
    mov [rax + 72], r10
    mov [rax + 80], r11
    mov [rax + 88], r12
    mov [rax + 96], r13
    mov [rax + 104], r14
    mov [rax + 112], r15
    mov rcx, [rip + callee]
    mov [rax], rcx
    cmp byte ptr [rip + has_avx], 0
    je 1f
    vectors take
    vzeroupper
    jmp 2f
1:  vectors take_half
2:  .noaltmacro
    pop rdx
    .cfi_adjust_cfa_offset -8
    pop r15
    .cfi_adjust_cfa_offset -8
    pop r14
    .cfi_adjust_cfa_offset -8
    pop r13
    .cfi_adjust_cfa_offset -8
    pop r12
    .cfi_adjust_cfa_offset -8
    pop rbp
    .cfi_adjust_cfa_offset -8
    pop rbx
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size call_full, . - call_full

    .data
    .balign 16
next: .quad area
    .globl has_avx
has_avx: .byte 0
    .bss
    .balign 4096
callee: .quad 0
    .globl behind
behind: .quad 0
    .balign 4096
area: .skip 1 << 24
    .text
    .att_syntax
)");

static const char *const NAMES[] = {"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8",
                                    "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};
static int wrong;

// Calls a function with these arguments; what it returns.
static NOINLINE uint64_t called(const char *name, void (*function)(), bool has_result, uint64_t a, uint64_t b = 0,
                                uint64_t c = 0) {
    static uint64_t number = 1, calls;
    State before, after;
    memset(&after, 0, sizeof after);
    for (uint64_t &word : before.whole)
        word = number++ * 0x9e3779b97f4a7c15;
    for (auto &vector : before.vectors)
        for (uint64_t &word : vector)
            word = number++ * 0x9e3779b97f4a7c15;
    before.whole[5] = a;
    before.whole[4] = b;
    before.whole[3] = c;
    behind = function;
    call_full(calls++ % 7 < 3 ? not_aligned : function, &before, &after);
    for (int i = has_result; i < 15; i++)
        if (before.whole[i] != after.whole[i]) {
            printf("%s changed %s\n", name, NAMES[i]);
            wrong = 1;
        }
    for (int i = 0; i < 16; i++)
        if (memcmp(before.vectors[i], after.vectors[i], has_avx ? 32 : 16) != 0) {
            printf("%s changed xmm%d\n", name, i);
            wrong = 1;
        }
    return after.whole[0];
}

#define GIVES(function, ...) called(#function, do_##function, true, __VA_ARGS__)
#define TAKES(function, ...) called(#function, do_##function, false, __VA_ARGS__)

int main() {
    // libstdc++ is then linked with, for which the operators are exported.
    std::set_new_handler(nullptr);
    has_avx = __builtin_cpu_supports("avx") != 0;
    for (int i = 0; i < 100; i++) {
        uint64_t block, *out = &block;
        TAKES(free, GIVES(malloc, 100));
        TAKES(free, GIVES(calloc, 3, 70));
        TAKES(free, GIVES(realloc, GIVES(realloc, 0, 10), 200));
        TAKES(free, GIVES(memalign, 64, 300));
        TAKES(free, GIVES(aligned_alloc, 128, 256));
        GIVES(posix_memalign, reinterpret_cast<uint64_t>(out), 256, 33);
        TAKES(free, block);
        TAKES(free, GIVES(valloc, 44));
        TAKES(free, 0);
        TAKES(beside_free, GIVES(beside_malloc, 100));
        TAKES(beside_free, GIVES(beside_calloc, 3, 70));
        TAKES(beside_free, GIVES(beside_realloc, GIVES(beside_realloc, 0, 10), 200));
        TAKES(beside_free, GIVES(beside_memalign, 64, 300));
        TAKES(_ZdlPv, GIVES(_Znwm, 50));
        TAKES(_ZdlPvm, GIVES(_Znwm, 60), 60);
        GIVES(_ZnwmSt11align_val_t, 70, 64);
    }
    printf("%s\n", wrong ? "wrong" : "all as they were");
    return wrong;
}
