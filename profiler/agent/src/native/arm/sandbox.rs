//! The ways past the hooks of [`crate::sandbox`]: each stub looks at the first argument, and goes on in the function unless it is
//! called for what is to be seen.
//!
//! # Safety
//! They change no register but the flags and R12, which any call may change on its way, before they go on, in the function or
//! in the stub that is entered as it is.

use super::entry::{address, begin, end};
use crate::entry::stub_section;
use crate::hooks::{Function, ORIGINALS};
use crate::own_stack;
use crate::sandbox::hooks::threads::{begins, grapnel_agent_pthread_create_watched};
use crate::sandbox::hooks::{
    PR_SET_SECCOMP, PR_SET_TSC, grapnel_agent_prctl_watched, grapnel_agent_syscall_watched,
};
use crate::sandbox::{ANY, clock};
use syscalls::Sysno;

/// Whether the kernel takes the processor's clock away from a thread in strict mode.
pub(crate) const STRICT_TAKES_CLOCK: bool = false;

/// Assembly that goes on in the function's own code.
macro_rules! go_on {
    () => {
        concat!(address!("ip", "{originals}"), "ldr ip, [ip, #{function}]\nbx ip\n")
    };
}

/// The number of a system call, as the kernel takes it.
pub(crate) fn call_number(number: usize) -> usize {
    number
}

/// Defines the stub `$stub`, which goes to `$watched` if the first argument is one of two, and else to the function's own code.
macro_rules! either_way {
    ($stub:ident, $one:expr, $other:expr, $watched:path, $function:ident) => {
        unsafe extern "C" {
            pub(crate) fn $stub();
        }
        core::arch::global_asm!(
            stub_section!(),
            begin!(stringify!($stub)),
            "movw ip, #{one}",
            "cmp r0, ip",
            "beq 2f",
            "movw ip, #{other}",
            "cmp r0, ip",
            "beq 2f",
            go_on!(),
            "2:",
            "b {watched}",
            end!(stringify!($stub)),
            ".text",
            one = const $one,
            other = const $other,
            watched = sym $watched,
            originals = sym ORIGINALS,
            function = const size_of::<usize>() * Function::$function as usize,
        );
    };
}

either_way!(grapnel_agent_prctl, PR_SET_SECCOMP, PR_SET_TSC, grapnel_agent_prctl_watched, Prctl);
either_way!(
    grapnel_agent_syscall,
    Sysno::seccomp as usize,
    Sysno::prctl as usize,
    grapnel_agent_syscall_watched,
    Syscall
);

unsafe extern "C" {
    pub(crate) fn grapnel_agent_pthread_create();
    pub(crate) fn grapnel_agent_thread_begins();
}
core::arch::global_asm!(
    ".text",
    begin!("grapnel_agent_pthread_create"),
    ".save {{r0-r3, r4, lr}}",
    "push {{r0-r3, r4, lr}}",
    "mov r0, r1",
    "bl {is_made}",
    "pop {{r0-r3, r4, lr}}",
    address!("ip", "{any}"),
    "ldrb ip, [ip]",
    "cmp ip, #0",
    "bne 2f",
    address!("ip", "{no_clock}"),
    "ldrb ip, [ip]",
    "cmp ip, #0",
    "bne 2f",
    go_on!(),
    "2:",
    "b {watched}",
    end!("grapnel_agent_pthread_create"),
    // A thread begins here that was handed something: it takes that, and goes on as if it had begun where it is to.
    begin!("grapnel_agent_thread_begins"),
    ".save {{r4, lr}}",
    "push {{r4, lr}}",
    ".pad #8",
    "sub sp, sp, #8",
    "mov r1, sp",
    "bl {begins}",
    "ldr ip, [sp]",
    "ldr r0, [sp, #4]",
    "add sp, sp, #8",
    "pop {{r4, lr}}",
    "bx ip",
    end!("grapnel_agent_thread_begins"),
    any = sym ANY,
    no_clock = sym clock::ANY,
    watched = sym grapnel_agent_pthread_create_watched,
    is_made = sym own_stack::is_made,
    originals = sym ORIGINALS,
    function = const size_of::<usize>() * Function::PthreadCreate as usize,
    begins = sym begins,
);
