//! The quick beginnings of hooks, where only some allocations are recorded: see [`crate::sampled`].
//!
//! # Safety
//! They change no register but the flags and R12, which any call may change on its way: so those that may lie beside their
//! callers are the same.

use super::entry::{address, begin, end};
use super::tls::put_block;
use crate::filter::{COUNTERS, FILTER, FINE_SHIFT};
use crate::hooks::{Function, ORIGINALS};
use crate::sampled::{
    LEFT, grapnel_agent_sampled_beside_free, grapnel_agent_sampled_beside_malloc,
    grapnel_agent_sampled_calloc, grapnel_agent_sampled_free, grapnel_agent_sampled_malloc,
    grapnel_agent_sampled_realloc,
};

/// Puts on the stack what the beginning works with.
macro_rules! put_aside {
    () => {
        "push {{r4-r9}}\n"
    };
}

/// Brings it back. The flags stay.
macro_rules! fetch {
    () => {
        "pop {{r4-r9}}\n"
    };
}

/// Lowers what is left of the thread's gap by a register; the flags say what came of it. In one piece, as the handler of a
/// signal sees it. Changes what was put aside.
macro_rules! lower {
    ($register:literal) => {
        concat!(
            put_block!("r4", "r5"),
            "add r4, r4, #{left}\n",
            "8:\n",
            "ldrexd r6, r7, [r4]\n",
            "subs r6, r6, ",
            $register,
            "\nsbc r7, r7, #0\n",
            "strexd r5, r6, r7, [r4]\n",
            "cmp r5, #0\n",
            "bne 8b\n",
            "cmp r7, #0\n"
        )
    };
}

/// Leaves for the stub if what [`lower`] lowered is below 0.
macro_rules! leave_below_0 {
    () => {
        "bpl 9f\nb {stub}\n"
    };
}

/// Looks up the counter of the block in R0, and leaves for the stub unless it is 0.
macro_rules! leave_if_noted {
    () => {
        concat!(
            put_aside!(),
            address!("r4", "{filter}"),
            "ubfx r5, r0, #{fine_shift}, #{counters}\n",
            "ldrb ip, [r4, r5]\n",
            fetch!(),
            "cmp ip, #0\n",
            "beq 7f\n",
            "b {stub}\n",
            "7:\n"
        )
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
            begin!(stringify!($quick)),
            $($instructions,)+
            "9:",
            address!("ip", "{originals}"),
            "ldr ip, [ip, #{function}]",
            "bx ip",
            end!(stringify!($quick)),
            ".text",
            "/* {filter} {fine_shift} {counters} {left} {stub} */",
            originals = sym ORIGINALS,
            function = const size_of::<usize>() * Function::$function as usize,
            filter = sym FILTER,
            fine_shift = const FINE_SHIFT,
            counters = const COUNTERS.count_ones(),
            left = const LEFT,
            stub = sym $stub,
        );
    };
}

/// Those of `malloc` and `free`.
macro_rules! malloc_and_free {
    ($malloc:ident, $to_malloc:ident, $free:ident, $to_free:ident) => {
        quick!($malloc, $to_malloc, Malloc, put_aside!(), lower!("r0"), fetch!(), leave_below_0!());
        quick!($free, $to_free, Free, leave_if_noted!());
    };
}

malloc_and_free!(
    grapnel_agent_quick_malloc,
    grapnel_agent_sampled_malloc,
    grapnel_agent_quick_free,
    grapnel_agent_sampled_free
);
malloc_and_free!(
    grapnel_agent_quick_beside_malloc,
    grapnel_agent_sampled_beside_malloc,
    grapnel_agent_quick_beside_free,
    grapnel_agent_sampled_beside_free
);
quick!(
    grapnel_agent_quick_calloc,
    grapnel_agent_sampled_calloc,
    Calloc,
    put_aside!(),
    "umull r8, r9, r0, r1",
    "cmp r9, #0",
    // A product that overflows gives no block.
    "beq 6f",
    fetch!(),
    "b 9f",
    "6:",
    lower!("r8"),
    fetch!(),
    leave_below_0!()
);
quick!(
    grapnel_agent_quick_realloc,
    grapnel_agent_sampled_realloc,
    Realloc,
    "cmp r0, #0",
    // libc's own then calls malloc.
    "beq 9f",
    leave_if_noted!(),
    put_aside!(),
    lower!("r1"),
    fetch!(),
    leave_below_0!()
);
