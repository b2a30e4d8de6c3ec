//! RIP-relative operands beyond 2 GiB, for instructions whose destination can hold the operand's address.
//!
//! `lea r, [rip + d]` is `mov r, address`. `mov r, [rip + d]` is `mov r, address; mov r, [r]`, since the load
//! overwrites all of `r`. Neither touches a flag, and neither needs another register.

use super::{Inst, MAX_INST_LEN};

const REX: u8 = 0x40;
const REX_W: u8 = 0x48;
const REX_R: u8 = 0x44;
const REX_X: u8 = 0x42;
const REX_B: u8 = 0x41;

/// What an instruction does with its RIP-relative operand, if its destination can hold the operand's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pointer {
    /// `lea` of all 64 bits.
    Address {
        /// The number of the destination.
        register: u8,
    },
    /// `lea` of the low 32 bits, which clears the others.
    LowAddress {
        /// The number of the destination.
        register: u8,
    },
    /// `mov`, `movzx`, `movsx` or `movsxd` from memory, which writes all 64 bits of the destination. It is not RSP, which
    /// must be a stack pointer between any two instructions.
    Load {
        /// The number of the destination.
        register: u8,
    },
}

/// What `inst` does with its RIP-relative operand. Instructions with legacy prefixes are left out: a segment's base
/// would be missing, and under `66` and `67` the destination is not all written or the address is cut.
pub(super) fn pointer(bytes: &[u8]) -> Option<Pointer> {
    let (rex, opcode) = match bytes {
        [rex @ 0x40..=0x4f, opcode @ ..] => (*rex, opcode),
        opcode => (REX, opcode),
    };
    let register = |modrm: u8| (modrm >> 3 & 7) | if rex & REX_R == REX_R { 8 } else { 0 };
    let wide = rex & REX_W == REX_W;
    match *opcode {
        [0x8d, modrm, ..] if wide => Some(Pointer::Address { register: register(modrm) }),
        [0x8d, modrm, ..] => Some(Pointer::LowAddress { register: register(modrm) }),
        [0x8b, modrm, ..] | [0x0f, 0xb6 | 0xb7 | 0xbe | 0xbf, modrm, ..] => load(register(modrm)),
        [0x63, modrm, ..] if wide => load(register(modrm)),
        _ => None,
    }
}

fn load(register: u8) -> Option<Pointer> {
    const RSP: u8 = 4;
    (register != RSP).then_some(Pointer::Load { register })
}

/// `mov r64, imm64`. `register` is below 16.
#[must_use]
pub fn mov_imm64(register: u8, value: u64) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[0] = REX_W | register >> 3;
    bytes[1] = 0xb8 | register & 7;
    bytes[2..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// `mov r32, imm32`, which clears the upper half. `register` is below 16.
#[must_use]
pub fn mov_imm32(register: u8, value: u32) -> [u8; 6] {
    let mut bytes = [0; 6];
    bytes[0] = REX | register >> 3;
    bytes[1] = 0xb8 | register & 7;
    bytes[2..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// The load `inst` (one that [`Inst::pointer`] calls so) with `[register]` as its operand: its bytes and how many.
#[must_use]
pub fn load_through(inst: &Inst, register: u8) -> ([u8; MAX_INST_LEN], usize) {
    let source = inst.bytes();
    let mut bytes = [0; MAX_INST_LEN];
    // The ModRM is right before the displacement, which is the end of a load.
    let modrm = source.len() - 5;
    bytes[..modrm].copy_from_slice(&source[..modrm]);
    if source[0] & 0xf0 == REX {
        // REX.B and REX.X had no meaning. Now B is the base's, and X would make R12 an index of itself.
        bytes[0] = source[0] & !(REX_B ^ REX | REX_X ^ REX) | register >> 3;
    }
    let reg = source[modrm] & 0x38;
    let base = register & 7;
    match base {
        // As a base, R12 needs a SIB byte.
        4 => bytes[modrm..modrm + 2].copy_from_slice(&[reg | 4, 0x24]),
        // RBP and R13 need a displacement.
        5 => bytes[modrm..modrm + 2].copy_from_slice(&[0x40 | reg | 5, 0]),
        _ => bytes[modrm] = reg | base,
    }
    (bytes, modrm + if matches!(base, 4 | 5) { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CodeAddr,
        x86_64::{decode, text},
    };

    /// Every destination, through itself.
    #[test]
    fn every_load_goes_through_its_own_destination() {
        const NAMES: [&str; 16] = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
            "r14", "r15",
        ];
        for (register, name) in (0u8..).zip(NAMES) {
            // REX.X and REX.B are set and have no meaning in the original.
            let bytes = [0x4b | register >> 3 << 2, 0x8b, register << 3 & 0x38 | 5, 0, 0, 0, 0];
            let inst = decode(CodeAddr(0), &bytes).unwrap();
            let Some(Pointer::Load { register: found }) = inst.pointer() else {
                assert_eq!(name, "rsp");
                continue;
            };
            assert_eq!(found, register);
            let (through, len) = load_through(&inst, register);
            assert_eq!(text(CodeAddr(0), &through[..len]), format!("mov {name}, [{name}]"));
            let address = mov_imm64(register, 0x1122_3344_5566_7788);
            assert_eq!(text(CodeAddr(0), &address), format!("mov {name}, 0x1122334455667788"));
        }
    }

    #[test]
    fn partial_writes_and_prefixed_loads_are_left_out() {
        // mov ax, [rip]; mov rax, fs:[rip]; mov eax, [eip]; mov al, [rip]
        for bytes in
            [&[0x66, 0x8b, 5, 0, 0, 0, 0][..], &[0x64, 0x8b, 5, 0, 0, 0, 0], &[0x67, 0x8b, 5, 0, 0, 0, 0]]
        {
            assert_eq!(decode(CodeAddr(0), bytes).unwrap().pointer(), None);
        }
        assert_eq!(decode(CodeAddr(0), &[0x8a, 5, 0, 0, 0, 0]).unwrap().pointer(), None);
    }
}
