//! The ways past the hooks of [`crate::sandbox`]: each stub looks at the first argument, changes no register, and goes on in the
//! function unless it is called for what is to be seen.
//!
//! # Safety
//! They change no register but the flags before they go on, in the function or in the stub that is entered as it is.

use crate::entry::stub_section;
use crate::hooks::{Function, ORIGINALS};
use crate::sandbox::hooks::{
    PR_SET_SECCOMP, PR_SET_SYSCALL_USER_DISPATCH, PR_SET_TSC, grapnel_agent_prctl_watched,
    grapnel_agent_syscall_watched,
};
use syscalls::Sysno;

/// Whether the kernel takes the processor's clock away from a thread in strict mode.
pub(crate) const STRICT_TAKES_CLOCK: bool = true;

/// The number of a system call, as the kernel takes it.
pub(crate) fn call_number(number: usize) -> usize {
    number
}

/// Defines the stub `$stub`, which goes to `$watched` if the first argument is one of three, and else to the function's own code.
macro_rules! either_way {
    ($stub:ident, $register:literal, $one:expr, $other:expr, $third:expr, $watched:path, $function:ident) => {
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
            "endbr64",
            concat!("cmp ", $register, ", {one}"),
            "je 2f",
            concat!("cmp ", $register, ", {other}"),
            "je 2f",
            concat!("cmp ", $register, ", {third}"),
            "je 2f",
            "jmp qword ptr [rip + {originals} + {function}]",
            "2:",
            "jmp {watched}",
            ".cfi_endproc",
            concat!(".size ", stringify!($stub), ", . - ", stringify!($stub)),
            ".text",
            one = const $one,
            other = const $other,
            third = const $third,
            watched = sym $watched,
            originals = sym ORIGINALS,
            function = const size_of::<usize>() * Function::$function as usize,
        );
    };
}

// The kernel takes the number of a call whole, and an option of prctl as an `int`.
either_way!(
    grapnel_agent_prctl,
    "edi",
    PR_SET_SECCOMP,
    PR_SET_TSC,
    PR_SET_SYSCALL_USER_DISPATCH,
    grapnel_agent_prctl_watched,
    Prctl
);
either_way!(
    grapnel_agent_syscall,
    "rdi",
    Sysno::seccomp as usize,
    Sysno::prctl as usize,
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
        "endbr64",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        // A caller's stack need not be aligned.
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbx, 0",
        "mov rbx, rsp",
        ".cfi_def_cfa_register rbx",
        "and rsp, -16",
        "mov rdi, rsi",
        "call {is_made}",
        "mov rsp, rbx",
        ".cfi_def_cfa_register rsp",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbx",
        "pop rcx",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "cmp byte ptr [rip + {any}], 0",
        "jne 2f",
        "cmp byte ptr [rip + {no_clock}], 0",
        "jne 2f",
        "jmp qword ptr [rip + {originals} + {function}]",
        "2:",
        "jmp {watched}",
        ".cfi_endproc",
        ".size grapnel_agent_pthread_create, . - grapnel_agent_pthread_create",
        // A thread begins here that was handed something: it takes that, and goes on as if it had begun where it is to.
        ".balign 16",
        ".globl grapnel_agent_thread_begins",
        ".hidden grapnel_agent_thread_begins",
        ".type grapnel_agent_thread_begins,@function",
        "grapnel_agent_thread_begins:",
        ".cfi_startproc",
        "endbr64",
        "sub rsp, 24",
        ".cfi_adjust_cfa_offset 24",
        "mov rsi, rsp",
        "call {begins}",
        "mov rax, [rsp]",
        "mov rdi, [rsp + 8]",
        "add rsp, 24",
        ".cfi_adjust_cfa_offset -24",
        "jmp rax",
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
