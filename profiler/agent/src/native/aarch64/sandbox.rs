//! The ways past the hooks of [`crate::sandbox`]: each stub looks at the first argument, and goes on in the function unless it is
//! called for what is to be seen.
//!
//! # Safety
//! They change no register but the flags and X16, which any call may change on its way, before they go on, in the function or
//! in the stub that is entered as it is.

use crate::entry::stub_section;
use crate::hooks::{Function, ORIGINALS};
use crate::sandbox::hooks::{
    PR_SET_SECCOMP, PR_SET_TSC, grapnel_agent_prctl_watched, grapnel_agent_syscall_watched,
};
use syscalls::Sysno;

/// Whether the kernel takes the processor's clock away from a thread in strict mode. From Linux 6.12 on it does so for
/// `PR_SET_TSC`, and only then.
pub(crate) const STRICT_TAKES_CLOCK: bool = false;

/// Assembly that goes on in the function's own code.
macro_rules! go_on {
    () => {
        "adrp x16, {originals}
        add x16, x16, :lo12:{originals}
        ldr x16, [x16, #{function}]
        br x16"
    };
}

/// The number of a system call, as the kernel takes it.
pub(crate) fn call_number(number: usize) -> usize {
    number as u32 as usize
}

/// Defines the stub `$stub`, which goes to `$watched` if the first argument is one of two, and else to the function's own code.
macro_rules! either_way {
    ($stub:ident, $register:literal, $one:expr, $other:expr, $watched:path, $function:ident) => {
        unsafe extern "C" {
            pub(crate) fn $stub();
        }
        core::arch::global_asm!(
            stub_section!(),
            ".balign 16",
            concat!(".globl ", stringify!($stub)),
            concat!(".hidden ", stringify!($stub)),
            concat!(".type ", stringify!($stub), ",@function"),
            concat!(stringify!($stub), ":"),
            ".cfi_startproc",
            // BTI C.
            "hint #34",
            concat!("cmp ", $register, ", #{one}"),
            "b.eq 2f",
            concat!("cmp ", $register, ", #{other}"),
            "b.eq 2f",
            go_on!(),
            "2:",
            "b {watched}",
            ".cfi_endproc",
            concat!(".size ", stringify!($stub), ", . - ", stringify!($stub)),
            ".text",
            one = const $one,
            other = const $other,
            watched = sym $watched,
            originals = sym ORIGINALS,
            function = const size_of::<usize>() * Function::$function as usize,
        );
    };
}

// The kernel takes an option of prctl as an `int`, and the number of a call.
either_way!(grapnel_agent_prctl, "w0", PR_SET_SECCOMP, PR_SET_TSC, grapnel_agent_prctl_watched, Prctl);
either_way!(
    grapnel_agent_syscall,
    "w0",
    Sysno::seccomp as usize,
    Sysno::prctl as usize,
    grapnel_agent_syscall_watched,
    Syscall
);

#[cfg(not(grapnel_attached))]
mod threads {
    use crate::hooks::{Function, ORIGINALS};
    use crate::own_stack;
    use crate::sandbox::hooks::threads::{begins, grapnel_agent_pthread_create_watched};
    use crate::sandbox::{ANY, clock};

    unsafe extern "C" {
        pub(crate) fn grapnel_agent_pthread_create();
        pub(crate) fn grapnel_agent_thread_begins();
    }
    core::arch::global_asm!(
        ".text",
        ".balign 16",
        ".globl grapnel_agent_pthread_create",
        ".hidden grapnel_agent_pthread_create",
        ".type grapnel_agent_pthread_create,@function",
        "grapnel_agent_pthread_create:",
        ".cfi_startproc",
        // BTI C.
        "hint #34",
        "stp x29, x30, [sp, #-48]!",
        ".cfi_adjust_cfa_offset 48",
        ".cfi_rel_offset x29, 0",
        ".cfi_rel_offset x30, 8",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "mov x0, x1",
        "bl {is_made}",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        ".cfi_adjust_cfa_offset -48",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "adrp x16, {any}",
        "ldrb w16, [x16, :lo12:{any}]",
        "cbnz w16, 2f",
        "adrp x16, {no_clock}",
        "ldrb w16, [x16, :lo12:{no_clock}]",
        "cbnz w16, 2f",
        go_on!(),
        "2:",
        "b {watched}",
        ".cfi_endproc",
        ".size grapnel_agent_pthread_create, . - grapnel_agent_pthread_create",
        // A thread begins here that was handed something: it takes that, and goes on as if it had begun where it is to.
        ".balign 16",
        ".globl grapnel_agent_thread_begins",
        ".hidden grapnel_agent_thread_begins",
        ".type grapnel_agent_thread_begins,@function",
        "grapnel_agent_thread_begins:",
        ".cfi_startproc",
        // BTI C.
        "hint #34",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_adjust_cfa_offset 32",
        ".cfi_rel_offset x29, 0",
        ".cfi_rel_offset x30, 8",
        "mov x29, sp",
        "add x1, sp, #16",
        "bl {begins}",
        "ldp x16, x0, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        ".cfi_adjust_cfa_offset -32",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "br x16",
        ".cfi_endproc",
        ".size grapnel_agent_thread_begins, . - grapnel_agent_thread_begins",
        any = sym ANY,
        no_clock = sym clock::ANY,
        watched = sym grapnel_agent_pthread_create_watched,
        is_made = sym own_stack::is_made,
        originals = sym ORIGINALS,
        function = const size_of::<usize>() * Function::PthreadCreate as usize,
        begins = sym begins,
    );
}
#[cfg(not(grapnel_attached))]
pub(crate) use threads::{grapnel_agent_pthread_create, grapnel_agent_thread_begins};
