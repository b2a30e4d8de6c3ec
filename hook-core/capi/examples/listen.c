/* Listens to a function of this program, and puts a probe into its loop, both in one batch.
 *
 *     cc examples/listen.c $(pkg-config --cflags --libs grapnel-hook)
 */
#include <grapnel_hook.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A sum of three terms. In assembly, so that this example knows where the loop is. */
unsigned long sum(unsigned long first);
extern char sum_loop[], sum_end[];
__asm__(".globl sum, sum_loop, sum_end");
#if defined(__x86_64__)
#define PC rip
__asm__(".text\n"
        ".p2align 4\n"
        "sum: xor %eax, %eax\n"
        "    mov $3, %ecx\n"
        "sum_loop: add %rdi, %rax\n"
        "    inc %rdi\n"
        "    dec %ecx\n"
        "    jnz sum_loop\n"
        "    ret\n"
        "sum_end: nop\n");
#elif defined(__aarch64__)
#define PC pc
__asm__(".text\n"
        ".p2align 4\n"
        "sum: mov x1, x0\n"
        "    mov x0, #0\n"
        "    mov x2, #3\n"
        "sum_loop: add x0, x0, x1\n"
        "    add x1, x1, #1\n"
        "    subs x2, x2, #1\n"
        "    b.ne sum_loop\n"
        "    ret\n"
        "sum_end: nop\n");
#elif defined(__arm__)
/* What has the type of a function has bit 0 of its address set in T32. */
#define PC r[15]
#if defined(__thumb__)
#define INSTRUCTION_SET ".thumb\n"
#else
#define INSTRUCTION_SET ".arm\n"
#endif
__asm__(".text\n"
        ".syntax unified\n" INSTRUCTION_SET
        ".p2align 4\n"
        ".type sum, %function\n"
        ".type sum_loop, %function\n"
        "sum: mov r1, r0\n"
        "    movs r0, #0\n"
        "    movs r2, #3\n"
        "sum_loop: adds r0, r0, r1\n"
        "    adds r1, r1, #1\n"
        "    subs r2, r2, #1\n"
        "    bne sum_loop\n"
        "    bx lr\n"
        "sum_end: nop\n");
#endif

static int entered, left, turns;

static void on_enter(grapnel_call *call, void *data)
{
    (*(int *)data)++;
    grapnel_set_word(call, grapnel_argument(call, 0));
    grapnel_set_argument(call, 0, grapnel_argument(call, 0) + 1);
}

static void on_leave(grapnel_call *call, void *data)
{
    (void)data;
    left++;
    /* first + 1, first + 2 and first + 3 */
    if (grapnel_result(call) != 3 * grapnel_word(call) + 6)
        abort();
    grapnel_set_result(call, 1000);
}

static void on_turn(grapnel_call *call, void *data)
{
    (void)data;
    uintptr_t loop = (uintptr_t)sum_loop;
#if defined(__arm__)
    loop &= ~(uintptr_t)1;
#endif
    if (grapnel_call_registers(call)->PC != loop)
        abort();
    turns++;
}

static void check(grapnel_error *error)
{
    if (error) {
        fprintf(stderr, "%s\n%s\n", grapnel_error_message(error), grapnel_error_remedy(error));
        exit(1);
    }
}

int main(void)
{
    unsigned char before[32];
    grapnel_hook *listener, *probe;

    memcpy(before, (void *)sum, sizeof before);
    grapnel_batch *batch = grapnel_begin();
    grapnel_batch_attach(batch, (void *)sum, on_enter, on_leave, &entered, GRAPNEL_GUARDED, &listener);
    grapnel_batch_probe(batch, sum_loop, (void *)sum, sum_end - (char *)sum, on_turn, NULL, 0, &probe);
    check(grapnel_commit(batch, GRAPNEL_SINGLE_THREADED));

    for (unsigned long i = 0; i < 10; i++)
        if (sum(i) != 1000)
            return 1;

    batch = grapnel_begin();
    grapnel_batch_remove(batch, listener);
    grapnel_batch_remove(batch, probe);
    check(grapnel_commit(batch, GRAPNEL_SINGLE_THREADED));
    int restored = memcmp(before, (void *)sum, sizeof before) == 0;
    printf("%d entered, %d left, %d turns, %s\n", entered, left, turns, restored ? "restored" : "not restored");
    return !(restored && sum(1) == 6 && grapnel_missed() == 0);
}
