/* Linked for an address of its own, near the start of memory: a redirect can't have each of its bytes as a trap there, since
   places for its island would be below address 0. */
#include <grapnel_hook.h>

#include <stdio.h>
#include <string.h>

/* Functions whose second instruction begins at the fifth byte: behind it, none within 8 bytes, the next one byte on, two, and
   three; and the last with the third to the sixth at each byte. */
#define FUNCTION(name, second)                                                                                         \
    __asm__(".pushsection .text." name ", \"ax\", @progbits\n.p2align 4\n.globl " name "\n.type " name ", @function\n" \
            name ":\n.cfi_startproc\nlea 1(%rdi), %rax\n" second "\nret\n.cfi_endproc\n.size " name ", . - " name "\n"  \
            ".p2align 4\n.popsection");

FUNCTION("plain", "add $0x100, %rax")
FUNCTION("after_1", "push %rbx\nadd $0x100, %rax\npop %rbx")
FUNCTION("after_2", "push %rbx\npush %rcx\nadd $0x100, %rax\npop %rcx\npop %rbx")
FUNCTION("at_each", "push %rbx\npush %rcx\npush %rbp\npush %rdx\nadd $0x100, %rax\npop %rdx\npop %rbp\npop %rcx\npop %rbx")
FUNCTION("of_two", "xor %ecx, %ecx\nadd $0x100, %rax")

typedef long function(long);
function plain, after_1, after_2, at_each, of_two;

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
    };
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
        int works = at(5) == -5 && original(5) == 0x106;
        if (grapnel_remove(hook, GRAPNEL_LIVE) || !works || memcmp(before, (void *)at, sizeof before) || at(5) != 0x106)
            printf("%s is not as it should be\n", functions[i].name);
        else
            hooked++;
    }
    printf("%u of 5 at %p\n", hooked, (void *)plain);
    return (unsigned long)(void *)plain >> 31 != 0;
}
