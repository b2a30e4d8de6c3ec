//! What unwinders and debuggers are told, as far as it depends on the instruction set.

use grapnel_arch::{CodeAddr, x86_64::decode};

use super::stub::{PASS_RED_ZONE, RETURN, RETURN_TO_RED_ZONE};
use crate::{
    native::{Layout, LinkKind, StubKind},
    seen::piece::Stack,
};

/// The columns of RSP and of the return address (System V ABI, 3.6.2), and `EM_X86_64`.
pub(crate) const LAYOUT: Layout =
    Layout { stack_pointer: 7, return_address: 16, behind: 1, machine: 62, flags: 0, unwinders: true };

/// The registers' columns, by their numbers in instructions.
const COLUMN: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

/// What the relocated code of one instruction does to the stack before it is done, as the relocator's `far` and `LastCall` say:
/// it begins with a step over the red zone if it keeps a register there, or with one over what its call in the end goes to, where
/// the return address is on the stack, and else leaves the stack to its one instruction.
pub(crate) fn stack_within(code: &[u8], each: &mut dyn FnMut(usize, Stack)) {
    let mut stack = Stack::default();
    each(0, stack);
    if let [0xeb, over, rest @ ..] = code
        && let Some([0xe8, _, _, _, _]) = rest.get(usize::from(*over)..)
    {
        each(2, Stack { below: 8, ..stack });
        each(2 + usize::from(*over), stack);
        return;
    }
    if !code.starts_with(&PASS_RED_ZONE) {
        return;
    }
    let mut at = 0;
    while let Ok(inst) = decode(CodeAddr(at as u64), code.get(at..).unwrap_or(&[])) {
        let bytes = inst.bytes();
        let (extended, plain) = match bytes {
            [rex @ 0x40..=0x4f, rest @ ..] => (usize::from(rex & 1) * 8, rest),
            bytes => (0, bytes),
        };
        let register = |opcode: u8| COLUMN[extended + usize::from(opcode & 7)];
        match *plain {
            // lea rsp, [rsp + disp]
            [0x8d, 0x64, 0x24, disp] => {
                stack.below = stack.below.wrapping_add_signed(-i32::from(disp.cast_signed()));
            }
            [0x8d, 0xa4, 0x24, a, b, c, d] => {
                stack.below = stack.below.wrapping_add_signed(-i32::from_le_bytes([a, b, c, d]));
            }
            [opcode @ 0x50..=0x57] => {
                stack.below += 8;
                stack.kept = [Some((register(opcode), stack.below)), None];
            }
            [0x58..=0x5f] => {
                stack.below = stack.below.wrapping_sub(8);
                stack.kept = [None; 2];
            }
            // push and pop of memory
            [0xff, modrm, ..] if modrm >> 3 & 7 == 6 => stack.below += 8,
            [0x8f, modrm, ..] if modrm >> 3 & 7 == 0 => stack.below = stack.below.wrapping_sub(8),
            _ => {}
        }
        at += bytes.len();
        if at >= code.len() {
            return;
        }
        each(at, stack);
    }
}

/// The same for what the code behind a probe begins with: nothing.
pub(crate) fn stack_of_preamble(_: StubKind) -> Stack {
    Stack::default()
}

/// The same for a stub that goes where its word says.
pub(crate) fn stack_of_jump_stub(_: StubKind, each: &mut dyn FnMut(usize, Stack)) {
    each(0, Stack::default());
}

/// The same for the stub of a listener or a probe.
pub(crate) fn stack_of_link_stub(kind: LinkKind, each: &mut dyn FnMut(usize, Stack)) {
    each(0, Stack::default());
    if kind.stub == StubKind::Inside {
        each(PASS_RED_ZONE.len(), Stack { below: 128, ..Stack::default() });
        each(RETURN + RETURN_TO_RED_ZONE.len(), Stack::default());
    }
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
    use grapnel_relocator::{Isa, RelocationPlan, Window, WindowOptions};

    /// The stack at each instruction of what becomes of one, too far away for its operand.
    fn stacks(code: &[u8]) -> Vec<(u32, Option<(u8, u32)>)> {
        let from = CodeAddr(0x7000_0000_0000);
        let options = WindowOptions { entry: false, ..WindowOptions::default() };
        let window = Window::decode_with(Isa::X86_64, from, code, 1, options).unwrap();
        let moved = RelocationPlan::new(&window).unwrap().emit(CodeAddr(0x1000_0000)).unwrap();
        assert!(moved.clobbers().is_empty());
        let end = moved.map().to_relocated(code.len()).unwrap();
        let mut stacks = Vec::new();
        stack_within(&moved.bytes()[..end], &mut |_, stack| stacks.push((stack.below, stack.kept[0])));
        stacks
    }

    #[test]
    fn a_return_address_is_on_the_stack_where_a_last_call_goes() {
        // call +0x100, and call rax
        assert_eq!(stacks(&[0xe8, 0, 1, 0, 0]), [(0, None), (8, None), (0, None)]);
        assert_eq!(stacks(&[0xff, 0xd0]), [(0, None), (8, None), (0, None)]);
        // call [rax]
        assert_eq!(stacks(&[0xff, 0x10]), [(0, None)]);
    }

    #[test]
    fn a_kept_register_is_found_on_the_stack() {
        // cmp [rip + 8], rbx: with rax kept.
        let rax = Some((0, 136));
        let kept = [(0, None), (128, None), (136, rax), (136, rax), (136, rax), (128, None)];
        assert_eq!(stacks(&[0x48, 0x39, 0x1d, 8, 0, 0, 0]), kept);
        // push [rip + 8]
        let kept = [(0, None), (128, None), (136, rax), (136, rax), (144, rax), (136, rax), (128, None)];
        assert_eq!(stacks(&[0xff, 0x35, 8, 0, 0, 0]), kept);
        // mov rax, [rip + 8]: rax is its own.
        assert_eq!(stacks(&[0x48, 0x8b, 0x05, 8, 0, 0, 0]), [(0, None)]);
    }
}
