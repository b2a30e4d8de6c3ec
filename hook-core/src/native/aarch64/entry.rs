//! The routines that call listeners from stubs.
//!
//! A link stub jumps to one of them, with the address of its literals in X16. It saves the registers, calls Rust, loads
//! what was saved or changed, and goes on through the stub's word.
//!
//! # Safety
//! The routines keep every register but those that the listener changes, and at a function's entry X16 and X17.

use super::{
    save::{load_general, load_vectors, routine, save_general, save_vectors},
    stub::{SITE, WORD},
};
use crate::native::{LinkKind, StubKind, Vectors};

macro_rules! entry_routine {
    ($name:literal, $vectors:ident) => {
        routine!(
            $name,
            "sub sp, sp, #832",
            ".cfi_def_cfa_offset 832",
            save_general!(),
            "str x30, [sp, #824]",
            ".cfi_rel_offset x30, 824",
            "str x16, [sp, #816]",
            "add x17, sp, #832",
            "str x17, [sp, #248]",
            save_vectors!($vectors),
            "mov x0, sp",
            "bl {entered}",
            load_vectors!($vectors),
            load_general!(),
            "ldr x30, [sp, #824]",
            "ldr x16, [sp, #816]",
            "ldr x16, [x16, #{word}]",
            "ldr x17, [x16]",
            "add sp, sp, #832",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x30",
            "br x17";
            entered = sym crate::listen::entered,
            word = const WORD,
        );
    };
}

entry_routine!("grapnel_hook_entered", low);
entry_routine!("grapnel_hook_entered_all", all);

// In the middle of a function: X16 and X17 are on the stack, and stay there. The flags are kept. What lies above is the
// frame of the probed function, as an interrupted one: its address is that of an instruction that has yet to run. Since X30
// is that function's, the address is in another column, that of the PC (see `seen::LAYOUT`). It is the site literal of the
// stub: first counted from X16, then from what was saved of it at CFA - 32.
//   16 20 03 80 18 06        DW_CFA_val_expression, column 32, 3 bytes: breg16 24, deref
//   16 20 07 08 20 1c 06     7 bytes: const1u 32, minus, deref
//   23 18 06                 plus_uconst 24, deref
macro_rules! probe_routine {
    ($name:literal, $vectors:ident) => {
        routine!(
            $name,
            @ ".cfi_signal_frame",
            @ ".cfi_return_column 32",
            @ ".cfi_def_cfa sp, 16",
            @ ".cfi_escape 0x16, 0x20, 0x03, 0x80, 0x18, 0x06",
            @ ".cfi_offset x16, -16",
            @ ".cfi_offset x17, -8",
            "sub sp, sp, #832",
            ".cfi_def_cfa_offset 848",
            save_general!(),
            ".cfi_rel_offset x30, 240",
            "str x16, [sp, #816]",
            ".cfi_escape 0x16, 0x20, 0x07, 0x08, 0x20, 0x1c, 0x06, 0x23, 0x18, 0x06",
            "ldr x0, [sp, #832]",
            "ldr x1, [sp, #840]",
            "stp x0, x1, [sp, #128]",
            "add x0, sp, #848",
            "str x0, [sp, #248]",
            "mrs x0, nzcv",
            "str x0, [sp, #264]",
            save_vectors!($vectors),
            "mov x0, sp",
            "bl {probed}",
            load_vectors!($vectors),
            "ldp x0, x1, [sp, #128]",
            "str x0, [sp, #832]",
            "str x1, [sp, #840]",
            "ldr x0, [sp, #264]",
            "msr nzcv, x0",
            load_general!(),
            "ldr x30, [sp, #240]",
            "ldr x16, [sp, #816]",
            ".cfi_escape 0x16, 0x20, 0x03, 0x80, 0x18, 0x06",
            "ldr x17, [x16, #{word}]",
            "ldr x17, [x17]",
            "add sp, sp, #832",
            ".cfi_def_cfa_offset 16",
            "br x17";
            probed = sym crate::listen::probed,
            word = const WORD,
        );
    };
}

const _: () = assert!(SITE == 24);

probe_routine!("grapnel_hook_probed_all", all);

unsafe extern "C" {
    fn grapnel_hook_entered();
    fn grapnel_hook_entered_all();
    fn grapnel_hook_probed_all();
}

/// The routine that a link stub calls, by where it stands and whether all vector state is saved.
pub(crate) fn routine(kind: LinkKind) -> u64 {
    let routine: unsafe extern "C" fn() = match (kind.stub, kind.vectors) {
        (StubKind::Entry, Vectors::Low | Vectors::None) => grapnel_hook_entered,
        (StubKind::Entry, Vectors::All) => grapnel_hook_entered_all,
        // Those that are told are never known to leave the vectors alone here.
        (StubKind::Inside, _) => grapnel_hook_probed_all,
    };
    routine as usize as u64
}
