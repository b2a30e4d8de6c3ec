//! The routines that call listeners from stubs.
//!
//! A link stub calls one of them. It saves the registers, calls Rust, loads what was saved or changed, and returns to the
//! stub.
//!
//! # Safety
//! The routines keep every register but those that the listener changes.

use super::{
    general::Own,
    registers::{NOT_SAVED, Saved},
    save::*,
    stub::{RETURN, WATCHED},
    vectors::{load_all, save_all, with_all_vectors},
};
use crate::{
    listen,
    native::{LinkKind, StubKind, Vectors},
};

// What is said to unwinders about the return address of a probe, as a DWARF expression: it is the site literal of the
// stub, 45 bytes behind where its call returns to, at CFA - 136.
//   10 10 06        DW_CFA_expression, column 16, 6 bytes
//   08 88 1c 06     const1u 136, minus, deref
//   23 2d           plus_uconst 45
// At a function's entry: the stub's return address is on the stack, and above it the function's.
macro_rules! entry_routine {
    ($name:literal, $vectors:ident, $before:expr, $tell:expr, $behind:expr; $($operands:tt)*) => {
        routine!(
            $name,
            ".cfi_def_cfa rsp, 16",
            "lea rsp, [rsp - 304]",
            ".cfi_def_cfa_offset 320",
            save!($vectors),
            "lea rax, [rbp + 312]",
            "mov [rbp + 160], rax",
            $before,
            $tell,
            $behind,
            load!($vectors),
            "lea rsp, [rsp + 304]",
            ".cfi_def_cfa_offset 16",
            "ret";
            $($operands)*
        );
    };
}

// The same where the return may be watched. Unless it is, the stub goes straight on. Where it goes on afterwards is put in
// the place of the listener's word, which a point has by then.
macro_rules! watching_routine {
    ($name:literal, $vectors:ident, $tell:expr; $($operands:tt)*) => {
        entry_routine!(
            $name,
            $vectors,
            "lea rax, [rip + grapnel_hook_unwatched]
             mov [rbp + {way_in}], rax",
            $tell,
            "mov rax, [rbp + 304]
             add rax, {rest}
             mov [rbp + 296], rax";
            way_in = const Saved::WAY_IN,
            rest = const WATCHED - RETURN,
            $($operands)*
        );
    };
}

entry_routine!(
    "grapnel_hook_entered", low, "", tell!("{entering}"), "";
    entering = sym listen::entering, data = const LINK_DATA, errno = sym listen::ERRNO,
);
watching_routine!(
    "grapnel_hook_watched", low, concat!(tell!("{entering}"), "mov rdi, rbp\nmov rsi, rbx\ncall {watch}");
    entering = sym listen::entering, data = const LINK_DATA, errno = sym listen::ERRNO, watch = sym listen::watch,
);
with_all_vectors!(entry_routine!(
    "grapnel_hook_entered_all", all, "", "mov rdi, rbp\ncall {entered}", "";
    entered = sym listen::entered,
));
entry_routine!(
    "grapnel_hook_entered_none", none, "", tell!("{entering}"), "";
    not_saved = const NOT_SAVED, entering = sym listen::entering, data = const LINK_DATA, errno = sym listen::ERRNO,
);
watching_routine!(
    "grapnel_hook_watched_none", none, concat!(tell!("{entering}"), "mov rdi, rbp\nmov rsi, rbx\ncall {watch}");
    not_saved = const NOT_SAVED, entering = sym listen::entering, data = const LINK_DATA, errno = sym listen::ERRNO, watch = sym listen::watch,
);
with_all_vectors!(watching_routine!(
    "grapnel_hook_watched_all", all, "mov rdi, rbp\ncall {entered}";
    entered = sym listen::entered,
));

// In the middle of a function: the stub has passed the red zone. The flags are kept. What lies above is the frame of the
// probed function, as an interrupted one: its address is that of an instruction that has yet to run.
macro_rules! probe_routine {
    ($name:literal, $vectors:ident, $tell:expr; $($operands:tt)*) => {
        routine!(
            $name,
            ".cfi_signal_frame",
            ".cfi_def_cfa rsp, 136",
            ".cfi_escape 0x10, 0x10, 0x06, 0x08, 0x88, 0x1c, 0x06, 0x23, 0x2d",
            // First and last, since what lies far below the stack pointer isn't safe from signals.
            "lea rsp, [rsp - 40]",
            ".cfi_def_cfa_offset 176",
            "pushfq",
            ".cfi_def_cfa_offset 184",
            "lea rsp, [rsp - 256]",
            ".cfi_def_cfa_offset 440",
            save!($vectors),
            "cld",
            "lea rax, [rbp + 440]",
            "mov [rbp + 160], rax",
            $tell,
            load!($vectors),
            "lea rsp, [rsp + 256]",
            ".cfi_def_cfa_offset 184",
            "popfq",
            ".cfi_def_cfa_offset 176",
            "lea rsp, [rsp + 40]",
            ".cfi_def_cfa_offset 136",
            "ret";
            $($operands)*
        );
    };
}

probe_routine!(
    "grapnel_hook_probed", none, tell!("{probing}");
    not_saved = const NOT_SAVED, probing = sym listen::probing, data = const LINK_DATA, errno = sym listen::ERRNO,
);
with_all_vectors!(probe_routine!(
    "grapnel_hook_probed_all", all, "mov rdi, rbp\ncall {probed}";
    probed = sym listen::probed,
));

/// What the routines that save no vectors call; another is [`super::returns::RETURNING`].
pub(super) const OWN: [Own; 3] =
    [Own(listen::entering as *const ()), Own(listen::watch as *const ()), Own(listen::probing as *const ())];

unsafe extern "C" {
    fn grapnel_hook_entered();
    fn grapnel_hook_entered_none();
    fn grapnel_hook_entered_all();
    fn grapnel_hook_watched();
    fn grapnel_hook_watched_none();
    fn grapnel_hook_watched_all();
    fn grapnel_hook_probed();
    fn grapnel_hook_probed_all();
}

/// The routine that a link stub calls.
pub(crate) fn routine(kind: LinkKind) -> u64 {
    let routine: unsafe extern "C" fn() = match (kind.stub, kind.returns, kind.vectors) {
        (StubKind::Entry, false, Vectors::Low) => grapnel_hook_entered,
        (StubKind::Entry, false, Vectors::None) => grapnel_hook_entered_none,
        (StubKind::Entry, false, Vectors::All) => grapnel_hook_entered_all,
        (StubKind::Entry, true, Vectors::Low) => grapnel_hook_watched,
        (StubKind::Entry, true, Vectors::None) => grapnel_hook_watched_none,
        (StubKind::Entry, true, Vectors::All) => grapnel_hook_watched_all,
        (StubKind::Inside, _, Vectors::None) => grapnel_hook_probed,
        (StubKind::Inside, _, Vectors::Low | Vectors::All) => grapnel_hook_probed_all,
    };
    routine as usize as u64
}
