/* Linked for an address of its own, near the start of memory: a redirect can't have each of its bytes as a trap there, since
   places for its island would be below address 0. */
#define _GNU_SOURCE
#include <grapnel_hook.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#define FUNCTION(name, first, second)                                                                                  \
    __asm__(".pushsection .text." name ", \"ax\", @progbits\n.p2align 4\n.globl " name "\n.type " name ", @function\n" \
            name ":\n.cfi_startproc\n" first "\n" second "\nret\n.cfi_endproc\n.size " name ", . - " name "\n"        \
            ".p2align 4\n.popsection");

/* Functions whose second instruction begins at the fifth byte: behind it, none within 8 bytes, the next one byte on, two, and
   three; and the last with the third to the sixth at each byte. */
#define OF_4 "lea 1(%rdi), %rax"
FUNCTION("plain", OF_4, "add $0x100, %rax")
FUNCTION("after_1", OF_4, "push %rbx\nadd $0x100, %rax\npop %rbx")
FUNCTION("after_2", OF_4, "push %rbx\npush %rcx\nadd $0x100, %rax\npop %rcx\npop %rbx")
FUNCTION("at_each", OF_4, "push %rbx\npush %rcx\npush %rbp\npush %rdx\nadd $0x100, %rax\npop %rdx\npop %rbp\npop %rcx\npop %rbx")
FUNCTION("of_two", OF_4, "xor %ecx, %ecx\nadd $0x100, %rax")
/* Those with one at the fifth byte and one or two before it, for which no bytes ahead of a jump are to be had, as they are in
   python3.11. */
#define OF_1 "push %rbx\nmov %rdi, %rax"
FUNCTION("of_1_4", OF_1, "add $0x101, %rax\npop %rbx")
FUNCTION("of_1_4_5", OF_1, "push %rcx\nadd $0x101, %rax\npop %rcx\npop %rbx")
FUNCTION("of_1_4_5_6", OF_1, "push %rcx\npush %rdx\nadd $0x101, %rax\npop %rdx\npop %rcx\npop %rbx")
FUNCTION("of_1_4_7", OF_1, "lea 1(%rax), %eax\nadd $0x100, %rax\npop %rbx")
FUNCTION("of_1_2_4", "push %rbx\npush %rcx\nmov %edi, %eax", "add $0x101, %rax\npop %rcx\npop %rbx")
FUNCTION("of_1_3_4", "push %rbx\nmov %edi, %eax", "push %rcx\nadd $0x101, %rax\npop %rcx\npop %rbx")
FUNCTION("of_2_4_5", "push %r12\npush %r13", "push %rbx\nlea 0x101(%rdi), %rax\npop %rbx\npop %r13\npop %r12")

typedef long function(long);
function plain, after_1, after_2, at_each, of_two;
function of_1_4, of_1_4_5, of_1_4_5_6, of_1_4_7, of_1_2_4, of_1_3_4, of_2_4_5;

/* As a thread goes on that was stopped in front of the third instruction of `of_1_4` before it was patched. */
static long late(long x)
{
    long result;
    __asm__ volatile("call 1f\n\tjmp 2f\n1:\tpush %%rbx\n\tmov %%rdi, %%rax\n\tjmp *%[at]\n2:"
                     : "=&a"(result)
                     : [at] "r"((char *)of_1_4 + 4), "D"(x)
                     : "memory", "cc");
    return result;
}

static volatile int undefined;

/* The program's own: goes on behind `ud2`. */
static void on_undefined(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    undefined++;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

static long replacement(long x)
{
    return -x;
}

int main(void)
{
    struct {
        const char *name;
        function *at;
    } functions[] = {
        {"plain", plain}, {"after_1", after_1}, {"after_2", after_2}, {"at_each", at_each}, {"of_two", of_two},
        {"of_1_4", of_1_4}, {"of_1_4_5", of_1_4_5}, {"of_1_4_5_6", of_1_4_5_6}, {"of_1_4_7", of_1_4_7},
        {"of_1_2_4", of_1_2_4}, {"of_1_3_4", of_1_3_4}, {"of_2_4_5", of_2_4_5},
    };
    struct sigaction action = {.sa_sigaction = on_undefined, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &action, NULL);
    unsigned hooked = 0;
    for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++) {
        function *at = functions[i].at, *original;
        unsigned char before[32];
        grapnel_hook *hook;
        memcpy(before, (void *)at, sizeof before);
        grapnel_error *error = grapnel_replace((void *)at, (void *)replacement, GRAPNEL_LIVE, (void **)&original, &hook);
        if (error) {
            printf("%s: %s\n", functions[i].name, grapnel_error_message(error));
            grapnel_error_free(error);
            continue;
        }
        int works = at(5) == -5 && original(5) == 0x106 && late(5) == 0x106;
        if (grapnel_remove(hook, GRAPNEL_LIVE) || !works || memcmp(before, (void *)at, sizeof before) || at(5) != 0x106)
            printf("%s is not as it should be\n", functions[i].name);
        else
            hooked++;
    }
    __asm__ volatile("ud2");
    printf("%u of 12 at %p, %d of its own\n", hooked, (void *)plain, undefined);
    return (unsigned long)(void *)plain >> 31 != 0;
}
