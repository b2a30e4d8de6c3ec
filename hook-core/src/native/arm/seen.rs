//! What debuggers are told. Unwinders can't be told of anything: the tables of this architecture (EHABI32) are found by
//! `__gnu_Unwind_Find_exidx`, which knows the dynamic linker's list of objects alone, so there is no way to add some for code
//! that is made at run time.

use crate::{
    native::{Layout, LinkKind, StubKind},
    seen::piece::Stack,
};

/// The columns of SP and of the PC (AADWARF32, 4.1), `EM_ARM`, and the version of the ABI. GDB drops an address's lowest bit before it looks for the
/// instruction ahead of it.
pub(crate) const LAYOUT: Layout =
    Layout { stack_pointer: 13, return_address: 15, behind: 2, machine: 40, flags: EABI5, unwinders: false };

/// `EF_ARM_EABI_VER5`.
const EABI5: u32 = 0x0500_0000;
const IP: u8 = 12;
const LR: u8 = 14;

/// What the relocated code of one instruction does to the stack before it is done isn't followed: few of them use it, and
/// debuggers are shown what lies behind.
pub(crate) fn stack_within(_: &[u8], each: &mut dyn FnMut(usize, Stack)) {
    each(0, Stack::default());
}

/// What the code behind a probe begins with: nothing.
pub(crate) fn stack_of_preamble(_: StubKind) -> Stack {
    Stack::default()
}

/// A stub that goes where its word says. At a probe it pushes R0 and R1, of which it changes one.
pub(crate) fn stack_of_jump_stub(at: StubKind, each: &mut dyn FnMut(usize, Stack)) {
    each(0, Stack::default());
    if at == StubKind::Inside {
        each(4, Stack { below: 8, kept: [Some((0, 8)), None] });
    }
}

/// The stub of a listener or a probe, which makes room for a word and keeps R12 and LR.
pub(crate) fn stack_of_link_stub(kind: LinkKind, each: &mut dyn FnMut(usize, Stack)) {
    each(0, Stack::default());
    if kind.stub == StubKind::Inside {
        each(4, Stack { below: 4, ..Stack::default() });
        each(8, Stack { below: 12, kept: [Some((IP, 12)), Some((LR, 8))] });
    }
}

/// A routine that does nothing, behind its names.
macro_rules! debug_routine {
    ($names:literal) => {
        concat!(".arm\n", $names, "\n.fnstart\nbx lr\n.fnend")
    };
}

pub(crate) use debug_routine;
