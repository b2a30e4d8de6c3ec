//! What unwinders and debuggers are told, as far as it depends on the instruction set.

use grapnel_arch::aarch64::{INST_LEN, push};

use crate::{
    native::{Layout, LinkKind, StubKind},
    seen::piece::Stack,
};

/// The columns of SP and of the PC (AADWARF64, 4.1), and `EM_AARCH64`. The return address isn't in X30's column, 30: the
/// function may not have saved that register yet. Of the other columns, GDB knows this one, and LLVM's libunwind has no room
/// for 96, which is libgcc's for signals.
pub(crate) const LAYOUT: Layout =
    Layout { stack_pointer: 31, return_address: 32, behind: 1, machine: 183, flags: 0, unwinders: true };

/// While X16 and X17 are on the stack.
const PUSHED: Stack = Stack { below: 16, kept: [Some((16, 16)), Some((17, 8))] };

/// What the relocated code of one instruction does to the stack before it is done, as the relocator's `load` says: it keeps a
/// register there from its first instruction to its last, or leaves the stack to its one instruction.
pub(crate) fn stack_within(code: &[u8], each: &mut dyn FnMut(usize, Stack)) {
    each(0, Stack::default());
    let word = code.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    let register = (word & 31) as u8;
    if code.len() > INST_LEN && word == push(register) {
        each(INST_LEN, Stack { below: 16, kept: [Some((register, 16)), None] });
    }
}

/// The same for what the code behind a probe begins with, which takes X16 and X17 from the stack.
pub(crate) fn stack_of_preamble(at: StubKind) -> Stack {
    match at {
        StubKind::Entry => Stack::default(),
        StubKind::Inside => PUSHED,
    }
}

/// The same for a stub that goes where its word says. At a probe it has pushed them.
pub(crate) fn stack_of_jump_stub(at: StubKind, each: &mut dyn FnMut(usize, Stack)) {
    each(0, Stack::default());
    if at == StubKind::Inside {
        each(INST_LEN, PUSHED);
    }
}

/// The same for the stub of a listener or a probe.
pub(crate) fn stack_of_link_stub(kind: LinkKind, each: &mut dyn FnMut(usize, Stack)) {
    each(0, stack_of_preamble(kind.stub));
}

/// A routine that does nothing, behind its names.
macro_rules! debug_routine {
    ($names:literal) => {
        concat!($names, "\n.cfi_startproc\nret\n.cfi_endproc")
    };
}

pub(crate) use debug_routine;

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_relocator::{CodeAddr, Isa, RelocationPlan, Window, WindowOptions};

    const FROM: CodeAddr = CodeAddr(0x7000_0000_0000);
    /// Too far away for operands.
    const FAR: CodeAddr = CodeAddr(0x1000_0000);

    /// The stack at the instructions of what becomes of one.
    fn stacks(code: &[u32], to: CodeAddr) -> Vec<(usize, u32)> {
        let code: Vec<_> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        let options = WindowOptions { entry: false, ..WindowOptions::default() };
        let window = Window::decode_with(Isa::Aarch64, FROM, &code, 4, options).unwrap();
        let moved = RelocationPlan::new(&window).unwrap().emit(to).unwrap();
        let end = moved.map().to_relocated(4).unwrap();
        let mut stacks = Vec::new();
        stack_within(&moved.bytes()[..end], &mut |at, stack| stacks.push((at, stack.below)));
        stacks
    }

    #[test]
    fn a_kept_register_is_found_on_the_stack() {
        // ldr q0, 8; ret
        assert_eq!(stacks(&[0x9c00_0040, 0xd65f_03c0], FAR), [(0, 0), (4, 16)]);
        // ldr x0, 8: X0 is its own.
        assert_eq!(stacks(&[0x5800_0040, 0xd65f_03c0], FAR), [(0, 0)]);
        // str x16, [sp, #-16]!: itself. No register is free for a jump back from far away.
        assert_eq!(stacks(&[0xf81f_0ff0, 0xd65f_03c0], FROM.add(0x1000)), [(0, 0)]);
    }
}
