//! The quick beginnings of hooks, where only some allocations are recorded: see [`crate::sampled`].
//!
//! # Safety
//! They change registers only that a function may change and that hold no argument of theirs, and those that may lie beside
//! their callers none but RAX, where the function has a result.

use crate::filter::{ALONE, COARSE, COARSE_SHIFT, COUNTERS, FILTER, FINE_SHIFT, SLOT_SHIFT};
use crate::hooks::{Function, ORIGINALS};
use crate::sampled::{
    LEFT, grapnel_agent_sampled_beside_free, grapnel_agent_sampled_beside_malloc,
    grapnel_agent_sampled_calloc, grapnel_agent_sampled_free, grapnel_agent_sampled_malloc,
    grapnel_agent_sampled_realloc,
};

/// Lowers what is left of the thread's gap by a register, and leaves if that was less. For malloc: what no block is as large as
/// leaves too, with what is left raised, and its function sees to that ([`crate::sampling::passed`]).
#[cfg(not(grapnel_attached))]
macro_rules! lower_for_malloc {
    () => {
        "mov r11, qword ptr [rip + grapnel_agent_tls@GOTTPOFF]
        sub qword ptr fs:[r11 + {left}], rdi
        jb {stub}"
    };
}
/// The same where what is left may be below 0 before, and what no block is as large as leaves before it would raise that. By what is less, not by
/// the sign, which is turned round where a block of nearly half of the address space is asked for then.
#[cfg(not(grapnel_attached))]
macro_rules! lower {
    ($register:literal) => {
        concat!(
            "test ",
            $register,
            ", ",
            $register,
            "\njs {stub}\n",
            "mov r11, qword ptr [rip + grapnel_agent_tls@GOTTPOFF]\n",
            "sub qword ptr fs:[r11 + {left}], ",
            $register,
            "\njl {stub}"
        )
    };
}
/// Where a thread's block has to be looked up, the stub's function lowers the gap.
#[cfg(grapnel_attached)]
macro_rules! lower_for_malloc {
    () => {
        "jmp {stub}"
    };
}
#[cfg(grapnel_attached)]
macro_rules! lower {
    ($register:literal) => {
        "jmp {stub}"
    };
}

/// As [`lower`], where R11 was put below the stack pointer and is to be as it was.
#[cfg(not(grapnel_attached))]
macro_rules! lower_beside {
    ($register:literal) => {
        concat!(
            "test ",
            $register,
            ", ",
            $register,
            "\njs 6f\n",
            "mov r11, qword ptr [rip + grapnel_agent_tls@GOTTPOFF]\n",
            "sub qword ptr fs:[r11 + {left}], ",
            $register,
            "\n6:\nmov r11, [rsp - 8]\njl {stub}"
        )
    };
}
#[cfg(grapnel_attached)]
macro_rules! lower_beside {
    ($register:literal) => {
        "jmp {stub}"
    };
}

/// Looks up the byte of the 16 KiB that the block in RDI is in, and leaves the flags of a comparison with 0, where it lies in RAX and
/// R11.
macro_rules! look_up_coarse {
    () => {
        "mov r11d, edi
        shr r11d, {coarse_shift}
        lea rax, [rip + {coarse}]
        cmp byte ptr [rax + r11], 0"
    };
}
/// Where the byte at `$coarse` wasn't 0: goes on at `$clear` if it says of one block that it lies elsewhere, or if the counter of
/// the block's 32 bytes is 0, and otherwise behind itself. Changes RAX and R11.
macro_rules! look_up_fine {
    ($coarse:literal, $clear:literal) => {
        concat!(
            "mov r11d, edi
            shr r11d, {slot_shift}
            or r11b, {alone}
            cmp r11b, byte ptr [",
            $coarse,
            "]
            je 5f
            cmp byte ptr [",
            $coarse,
            "], 0
            js ",
            $clear,
            "\n5:
            mov r11, rdi
            shr r11, {fine_shift}
            and r11d, {counters}
            lea rax, [rip + {filter}]
            cmp byte ptr [rax + r11], 0
            je ",
            $clear
        )
    };
}
/// The same behind [`look_up_coarse`].
macro_rules! look_up_rest {
    ($clear:literal) => {
        concat!("add rax, r11\n", look_up_fine!("rax", $clear))
    };
}

/// Looks up both: goes on at `$clear` where one of them says that the block wasn't recorded, and otherwise behind itself. Changes RAX and R11.
macro_rules! look_up {
    ($clear:literal) => {
        concat!(look_up_coarse!(), "\nje ", $clear, "\n", look_up_rest!($clear))
    };
}

/// Defines the quick beginning `$quick` of a hook: `$instructions` leave for `$stub`, or go on to the original.
macro_rules! quick {
    ($quick:ident, $stub:ident, $function:ident, $($instructions:expr),+) => {
        unsafe extern "C" {
            pub(crate) fn $quick();
        }
        core::arch::global_asm!(
            $crate::entry::stub_section!(),
            ".balign 64",
            concat!(".globl ", stringify!($quick)),
            concat!(".hidden ", stringify!($quick)),
            concat!(".type ", stringify!($quick), ",@function"),
            concat!(stringify!($quick), ":"),
            ".cfi_startproc",
            "endbr64",
            $($instructions,)+
            "9:",
            "jmp qword ptr [rip + {originals} + {function}]",
            ".cfi_endproc",
            concat!(".size ", stringify!($quick), ", . - ", stringify!($quick)),
            ".text",
            "/* {coarse} {coarse_shift} {alone} {slot_shift} {filter} {fine_shift} {counters} {left} {stub} */",
            originals = sym ORIGINALS,
            function = const size_of::<usize>() * Function::$function as usize,
            coarse = sym COARSE,
            coarse_shift = const COARSE_SHIFT,
            alone = const ALONE,
            slot_shift = const SLOT_SHIFT,
            filter = sym FILTER,
            fine_shift = const FINE_SHIFT,
            counters = const COUNTERS,
            left = const LEFT,
            stub = sym $stub,
        );
    };
}

// The two that are called most lie side by side, and what most calls take is a cache line of each, without a jump but the last.
quick!(grapnel_agent_quick_malloc, grapnel_agent_sampled_malloc, Malloc, lower_for_malloc!());
quick!(
    grapnel_agent_quick_free,
    grapnel_agent_sampled_free,
    Free,
    look_up_coarse!(),
    "jne 7f",
    "jmp qword ptr [rip + {originals} + {function}]",
    "7:",
    look_up_rest!("9f"),
    "jmp {stub}"
);
// Behind a gate, which has found something at RCX + RAX + 18.
#[cfg(not(grapnel_attached))]
const _: () = assert!(super::gates::BEFORE_COARSE == 18);
#[cfg(not(grapnel_attached))]
quick!(
    grapnel_agent_fine_free,
    grapnel_agent_sampled_free,
    Free,
    look_up_fine!("rcx + rax + 18", "9f"),
    "jmp {stub}"
);
quick!(
    grapnel_agent_quick_calloc,
    grapnel_agent_sampled_calloc,
    Calloc,
    "mov rax, rdi",
    "mul rsi",
    // A product that overflows gives no block.
    "jc 9f",
    lower!("rax")
);
quick!(
    grapnel_agent_quick_realloc,
    grapnel_agent_sampled_realloc,
    Realloc,
    // libc's own then calls malloc.
    "test rdi, rdi",
    "jz 9f",
    look_up!("7f"),
    "jmp {stub}",
    "7:",
    lower!("rsi")
);
// Behind a gate: where what is left is below 0, it may have been lowered.
#[cfg(not(grapnel_attached))]
quick!(
    grapnel_agent_fine_realloc,
    grapnel_agent_sampled_realloc,
    Realloc,
    "mov r11, qword ptr [rip + grapnel_agent_tls@GOTTPOFF]",
    "cmp qword ptr fs:[r11 + {left}], 0",
    "jl {stub}",
    look_up!("7f"),
    "jmp {stub}",
    "7:",
    lower!("rsi")
);

// The same of functions that may lie beside their callers: no register is changed that the function may leave as it is.
quick!(
    grapnel_agent_quick_beside_malloc,
    grapnel_agent_sampled_beside_malloc,
    Malloc,
    "mov [rsp - 8], r11",
    lower_beside!("rdi")
);
quick!(
    grapnel_agent_quick_beside_free,
    grapnel_agent_sampled_beside_free,
    Free,
    "mov [rsp - 8], r11",
    "mov [rsp - 16], rax",
    look_up!("7f"),
    "mov rax, [rsp - 16]",
    "mov r11, [rsp - 8]",
    "jmp {stub}",
    "7:",
    "mov rax, [rsp - 16]",
    "mov r11, [rsp - 8]"
);
