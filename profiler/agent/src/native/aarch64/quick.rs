//! The quick beginnings of hooks, where only some allocations are recorded: see [`crate::sampled`].
//!
//! # Safety
//! They change X16 and X17, which any call may change on its way, and X9 and X10: those that may lie beside their callers bring
//! these back.

use crate::filter::{COARSE, COARSE_SHIFT, COUNTERS, FILTER, FINE_SHIFT};
use crate::hooks::{Function, ORIGINALS};
#[cfg(not(grapnel_attached))]
use crate::native::tls::put_block;
use crate::sampled::{
    LEFT, grapnel_agent_sampled_beside_free, grapnel_agent_sampled_beside_malloc,
    grapnel_agent_sampled_calloc, grapnel_agent_sampled_free, grapnel_agent_sampled_malloc,
    grapnel_agent_sampled_realloc,
};

/// Where a thread's block has to be looked up, the stub's function lowers the gap.
#[cfg(grapnel_attached)]
macro_rules! lower {
    ($register:literal) => {
        "b {stub}"
    };
}
/// Lowers what is left of the thread's gap by a register; the flags say what came of it. In one piece, as the handler of a
/// signal sees it. Of what no block is as large as they say the same, and nothing is lowered: that would raise it. Changes X9.
#[cfg(not(grapnel_attached))]
macro_rules! lower {
    ($register:literal) => {
        concat!(
            "cmp ",
            $register,
            ", #0\nb.mi 6f\n",
            put_block!("x16", "x17"),
            "add x16, x16, #{left}\n",
            "8:\n",
            "ldxr x17, [x16]\n",
            "subs x17, x17, ",
            $register,
            "\n",
            "stxr w9, x17, [x16]\n",
            "cbnz w9, 8b\n",
            "6:\n"
        )
    };
}

/// Leaves for the stub if what [`lower`] lowered is below 0.
macro_rules! leave_below_0 {
    () => {
        "b.pl 9f\nb {stub}"
    };
}

/// Looks up both counters of the block in X0, and leaves for the stub unless one of them is 0.
macro_rules! leave_if_noted {
    () => {
        "lsr w17, w0, #{coarse_shift}
        adrp x16, {coarse}
        add x16, x16, :lo12:{coarse}
        ldrb w17, [x16, x17]
        cbz w17, 7f
        lsr x17, x0, #{fine_shift}
        and x17, x17, #{counters}
        adrp x16, {filter}
        add x16, x16, :lo12:{filter}
        ldrb w17, [x16, x17]
        cbz w17, 7f
        b {stub}
        7:"
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
            ".balign 16",
            concat!(".globl ", stringify!($quick)),
            concat!(".hidden ", stringify!($quick)),
            concat!(".type ", stringify!($quick), ",@function"),
            concat!(stringify!($quick), ":"),
            ".cfi_startproc",
            // BTI C.
            "hint #34",
            $($instructions,)+
            "9:",
            "adrp x16, {originals}",
            "add x16, x16, :lo12:{originals}",
            "ldr x16, [x16, #{function}]",
            "br x16",
            ".cfi_endproc",
            concat!(".size ", stringify!($quick), ", . - ", stringify!($quick)),
            ".text",
            "/* {coarse} {coarse_shift} {filter} {fine_shift} {counters} {left} {stub} */",
            originals = sym ORIGINALS,
            function = const size_of::<usize>() * Function::$function as usize,
            coarse = sym COARSE,
            coarse_shift = const COARSE_SHIFT,
            filter = sym FILTER,
            fine_shift = const FINE_SHIFT,
            counters = const COUNTERS,
            left = const LEFT,
            stub = sym $stub,
        );
    };
}

quick!(grapnel_agent_quick_malloc, grapnel_agent_sampled_malloc, Malloc, lower!("x0"), leave_below_0!());
quick!(
    grapnel_agent_quick_calloc,
    grapnel_agent_sampled_calloc,
    Calloc,
    // A product that overflows gives no block.
    "umulh x17, x0, x1",
    "cbnz x17, 9f",
    "mul x10, x0, x1",
    lower!("x10"),
    leave_below_0!()
);
quick!(grapnel_agent_quick_free, grapnel_agent_sampled_free, Free, leave_if_noted!());
quick!(
    grapnel_agent_quick_realloc,
    grapnel_agent_sampled_realloc,
    Realloc,
    // libc's own then calls malloc.
    "cbz x0, 9f",
    leave_if_noted!(),
    lower!("x1"),
    leave_below_0!()
);

/// As [`lower`]: what follows is not come to.
#[cfg(grapnel_attached)]
macro_rules! put_aside {
    () => {
        "b {stub}"
    };
}
#[cfg(grapnel_attached)]
macro_rules! fetch {
    () => {
        ""
    };
}
/// Puts X9 and X10 on the stack.
#[cfg(not(grapnel_attached))]
macro_rules! put_aside {
    () => {
        "stp x9, x10, [sp, #-16]!\n.cfi_adjust_cfa_offset 16\n"
    };
}
/// And brings them back.
#[cfg(not(grapnel_attached))]
macro_rules! fetch {
    () => {
        "ldp x9, x10, [sp], #16\n.cfi_adjust_cfa_offset -16\n"
    };
}

// The same of functions that may lie beside their callers: no register is changed that the function may leave as it is.
quick!(
    grapnel_agent_quick_beside_malloc,
    grapnel_agent_sampled_beside_malloc,
    Malloc,
    put_aside!(),
    lower!("x0"),
    fetch!(),
    leave_below_0!()
);
quick!(grapnel_agent_quick_beside_free, grapnel_agent_sampled_beside_free, Free, leave_if_noted!());
