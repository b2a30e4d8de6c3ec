/* What would end in a crash or in a call without end is answered with an error, and the function does what it did. */
#include <grapnel_hook.h>

#include <stdio.h>
#include <string.h>

static int failures;

static void expect(int holds, const char *what)
{
    if (!holds) {
        printf("not so: %s\n", what);
        failures++;
    }
}

__attribute__((noinline, aligned(16))) static long function(long a, long b)
{
    __asm__ volatile("");
    return a * 3 + b;
}

static long (*original)(long, long);

static long replacement(long a, long b)
{
    return original(a, b) + 1000;
}

static unsigned char data[16] = {0xc3};

static void replaced_by(void *by, const char *text)
{
    grapnel_hook *hook;
    grapnel_error *error = grapnel_replace((void *)function, by, GRAPNEL_SINGLE_THREADED, NULL, &hook);
    expect(error != NULL && strstr(grapnel_error_message(error), text) != NULL, text);
    expect(hook == NULL && function(1, 1) == 4, text);
    grapnel_error_free(error);
}

static void replacements(void)
{
    grapnel_hook *hook, *second;
    void *kept;
    replaced_by((void *)function, "itself");
    replaced_by((char *)(void *)function + 3, "overwritten");
    replaced_by(data, "executable");
    grapnel_error *error =
        grapnel_replace((void *)function, (void *)replacement, GRAPNEL_SINGLE_THREADED, (void **)&original, &hook);
    expect(error == NULL && function(1, 1) == 1004, "it is replaced");
    kept = (void *)original;
    error = grapnel_replace((void *)function, (void *)replacement, GRAPNEL_SINGLE_THREADED, (void **)&original, &second);
    expect(error != NULL && second == NULL && (void *)original == kept, "it is not replaced twice");
    if (error != NULL) {
        expect(strstr(grapnel_error_message(error), "already replaced") != NULL, "why not");
        expect(function(1, 1) == 1004, "it is still replaced");
    }
    grapnel_error_free(error);
    expect(grapnel_remove(hook, GRAPNEL_SINGLE_THREADED) == NULL && function(1, 1) == 4, "it is as it was");
    error = grapnel_replace((void *)function, (void *)replacement, GRAPNEL_SINGLE_THREADED, (void **)&original, &hook);
    expect(error == NULL && function(1, 1) == 1004, "it is replaced again");
    expect(grapnel_remove(hook, GRAPNEL_SINGLE_THREADED) == NULL, "it is removed again");
}

#if defined(__x86_64__)
/* No unwind entry says where it ends. */
__asm__(".text; .p2align 4; .globl turns_back; .type turns_back, @function; turns_back:"
        "push %rbx; 1: add $1, %edi; cmp $10, %edi; jl 1b; mov %edi, %eax; pop %rbx; ret;"
        ".size turns_back, . - turns_back");
extern long turns_back(long);

/* What it seldom does lies elsewhere, as compilers put it, and goes on in the middle of it. */
__asm__(".text; .p2align 4; .globl comes_back; .type comes_back, @function; comes_back: .cfi_startproc;"
        "push %rbx; 1: add $1, %edi; cmp $10, %edi; jl comes_back.cold; mov %edi, %eax; pop %rbx; ret; .cfi_endproc;"
        ".size comes_back, . - comes_back;"
        ".section .text.unlikely, \"ax\", @progbits; .zero 1024, 0x90; .type comes_back.cold, @function;"
        "comes_back.cold: .cfi_startproc; add $2, %edi; jmp 1b; .cfi_endproc; .size comes_back.cold, . - comes_back.cold;"
        ".zero 1024, 0x90; .text");
extern long comes_back(long);

/* The same, and nothing but its symbol in the file says that the other part is a function. */
__asm__(".text; .p2align 4; .globl comes_back_unseen; .type comes_back_unseen, @function; comes_back_unseen: .cfi_startproc;"
        "push %rbx; 1: add $1, %edi; cmp $10, %edi; jl comes_back_unseen.cold; mov %edi, %eax; pop %rbx; ret; .cfi_endproc;"
        ".size comes_back_unseen, . - comes_back_unseen;"
        ".section .text.unlikely, \"ax\", @progbits; .zero 1024, 0x90; .type comes_back_unseen.cold, @function;"
        "comes_back_unseen.cold: add $2, %edi; jmp 1b; .size comes_back_unseen.cold, . - comes_back_unseen.cold;"
        ".zero 1024, 0x90; .text");
extern long comes_back_unseen(long);

static void enter(grapnel_call *call, void *entered)
{
    (void)call;
    ++*(int *)entered;
}

static void loop(long (*turns)(long))
{
    grapnel_hook *hook;
    int entered = 0;
    grapnel_error *error =
        grapnel_attach((void *)turns, enter, NULL, &entered, 0, GRAPNEL_SINGLE_THREADED, &hook);
    expect(error != NULL && strstr(grapnel_error_message(error), "branches into") != NULL, "the loop is seen");
    expect(turns(1) == 10 + 1 * (turns != turns_back) && entered == 0, "it turns");
    grapnel_error_free(error);
}

static void loops(void)
{
    loop(turns_back);
    loop(comes_back);
    loop(comes_back_unseen);
}
#else
static void loops(void) {}
#endif

int main(void)
{
    loops();
    replacements();
    printf("%d failures\n", failures);
    return failures != 0;
}
