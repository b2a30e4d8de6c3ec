//! RIP-relative operands beyond 2 GiB: the operand's address in a register, and the instruction through that.
//!
//! `lea r, [rip + d]` becomes `mov r, address`. Everything else becomes `mov r, address` and the same instruction with
//! `[r]` as its operand. Neither touches a flag.

use iced_x86::{Code, Instruction, Register};

use super::{Inst, MAX_INST_LEN, Mask, RSP, effects};

const REX: u8 = 0x40;
const REX_W: u8 = 0x48;
const REX_R: u8 = 0x44;
const REX_X: u8 = 0x42;
const REX_B: u8 = 0x41;

/// `lea` with a RIP-relative operand: it only computes the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pointer {
    /// All 64 bits.
    Address {
        /// The number of the destination.
        register: u8,
    },
    /// The low 32 bits, which clears the others.
    LowAddress {
        /// The number of the destination.
        register: u8,
    },
}

/// What `inst` does with its RIP-relative operand, if it is a `lea`. Those with legacy prefixes are left out: under `66`
/// and `67` the destination is not all written or the address is cut.
pub(super) fn pointer(bytes: &[u8]) -> Option<Pointer> {
    let (rex, opcode) = match bytes {
        [rex @ 0x40..=0x4f, opcode @ ..] => (*rex, opcode),
        opcode => (REX, opcode),
    };
    let register = |modrm: u8| (modrm >> 3 & 7) | if rex & REX_R == REX_R { 8 } else { 0 };
    match *opcode {
        [0x8d, modrm, ..] if rex & REX_W == REX_W => Some(Pointer::Address { register: register(modrm) }),
        [0x8d, modrm, ..] => Some(Pointer::LowAddress { register: register(modrm) }),
        _ => None,
    }
}

/// What an instruction with a RIP-relative operand does with the stack pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StackUse {
    /// Nothing.
    None,
    /// `push` of 64 bits.
    Push,
    /// `pop` of 64 bits.
    Pop,
    /// Something else: it names RSP, or pushes or pops 16 bits, or calls.
    Other,
}

/// Which registers could hold the address of a RIP-relative operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bases {
    /// Those that the instruction neither reads nor writes, but for `own`. RSP is never among them: it must be a stack
    /// pointer between any two instructions.
    pub free: Mask,
    /// Those of them that the instruction itself overwrites, whatever they held.
    pub own: Mask,
    /// What it does with the stack pointer.
    pub stack: StackUse,
}

impl Bases {
    pub(super) fn of(raw: &Instruction) -> Self {
        let effects = effects::of(raw);
        // AH, CH, DH and BH can't be named under a REX, which R8 to R15 as a base need.
        let high = [raw.op0_register(), raw.op1_register()]
            .into_iter()
            .any(|register| matches!(register, Register::AH | Register::CH | Register::DH | Register::BH));
        let encodable = if high { 0x00ff } else { Mask::MAX };
        let free = encodable & !RSP & !effects.uses;
        let stack = match raw.code() {
            Code::Push_rm64 => StackUse::Push,
            Code::Pop_rm64 => StackUse::Pop,
            _ if (effects.uses | effects.overwrites) & RSP == 0 => StackUse::None,
            _ => StackUse::Other,
        };
        Self { free, own: free & effects.overwrites, stack }
    }
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

/// The most bytes that [`through`] adds to an instruction: a REX, or a third byte of VEX, and a SIB byte or an 8-bit
/// displacement, in place of a 32-bit one.
pub const THROUGH_GROWS: isize = 1 + 1 - 4;

/// Bytes of an instruction that is being put together.
struct Bytes {
    bytes: [u8; MAX_INST_LEN],
    len: usize,
}

impl Bytes {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// `inst` with `[base]` in place of its RIP-relative operand, for one of its [`Bases`]: the bytes and how many. `None`
/// if it has no such operand.
///
/// REX.B and its likes had no meaning and become the base's; REX.X and its likes become 0, since with a SIB byte they
/// would make R12 an index (SDM 2.2.1.2, 2.3.5, 2.7.1; XOP as VEX: APM 3, 1.4). Under EVEX an 8-bit displacement
/// counts in units of the operand's size, which makes no difference to 0.
#[must_use]
pub fn through(inst: &Inst, base: u8) -> Option<([u8; MAX_INST_LEN], usize)> {
    let operand = inst.rip_operand()?;
    let source = inst.bytes();
    let modrm = usize::from(operand.field) - 1;
    let legacy = usize::from(inst.prefixes().len);
    let mut out = Bytes { bytes: [0; MAX_INST_LEN], len: 0 };
    let b = base >> 3;
    let behind = match source[legacy..] {
        [0xc5, rvvvvlpp, ..] if b == 0 => {
            out.push(&source[..legacy]);
            out.push(&[0xc5, rvvvvlpp]);
            legacy + 2
        }
        // The form of two bytes has no B: R is its own, the map is 0F, W is 0.
        [0xc5, rvvvvlpp, ..] => {
            out.push(&source[..legacy]);
            out.push(&[0xc4, rvvvvlpp & 0x80 | 0x40 | 0x01, rvvvvlpp & 0x7f]);
            legacy + 2
        }
        // VEX of three bytes, EVEX, and XOP, whose map tells it from `pop`: the bits X and B are 6 and 5, inverted.
        [escape @ (0xc4 | 0x62 | 0x8f), rxb, ..] if escape != 0x8f || rxb & 0x1f >= 8 => {
            out.push(&source[..legacy]);
            out.push(&[escape, rxb & 0x9f | 0x40 | (b ^ 1) << 5]);
            legacy + 2
        }
        _ => {
            // A REX counts right before the opcode only.
            match source[..legacy] {
                [ref before @ .., rex @ 0x40..=0x4f] => {
                    out.push(before);
                    out.push(&[rex & !(REX_B ^ REX | REX_X ^ REX) | b]);
                }
                ref before => {
                    out.push(before);
                    if b == 1 {
                        out.push(&[REX_B]);
                    }
                }
            }
            legacy
        }
    };
    out.push(&source[behind..modrm]);
    let reg = source[modrm] & 0x38;
    match base & 7 {
        // As a base, R12 needs a SIB byte.
        4 => out.push(&[reg | 4, 0x24]),
        // RBP and R13 need a displacement.
        5 => out.push(&[0x40 | reg | 5, 0]),
        low => out.push(&[reg | low]),
    }
    out.push(&source[modrm + 5..]);
    Some((out.bytes, out.len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CodeAddr,
        x86_64::{decode, text},
    };

    const NAMES: [&str; 16] = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];

    /// Every encoding with every base that it can have: the text is the same but for the operand.
    #[test]
    fn every_encoding_takes_every_base() {
        let cases: [&[u8]; 24] = [
            &[0x48, 0x8b, 5],                   // mov rax
            &[0x4f, 0x8b, 5],                   // mov r8, REX.X and REX.B set
            &[0x01, 5],                         // add [], eax
            &[0x00, 0x25],                      // add [], ah
            &[0x66, 0x81, 0x3d],                // cmp imm16
            &[0x83, 0x3d],                      // cmp imm8
            &[0xf0, 0x48, 0x0f, 0xc1, 5],       // lock xadd
            &[0x64, 0x48, 0x8b, 5],             // mov fs:
            &[0xf3, 0x44, 0x0f, 0x6f, 5],       // movdqu
            &[0x66, 0x0f, 0x3a, 0x0f, 5],       // palignr imm8
            &[0x0f, 0x0f, 5],                   // 3DNow!, opcode behind
            &[0xdd, 5],                         // fld
            &[0xc5, 0xf9, 0x6f, 5],             // vmovdqa
            &[0xc5, 0x79, 0x6f, 5],             // vmovdqa xmm8
            &[0xc5, 0xea, 0x58, 5],             // vaddss, vvvv and pp
            &[0xc4, 0x62, 0x75, 0x00, 5],       // vpshufb ymm
            &[0xc4, 0x02, 0x75, 0x00, 5],       // vpshufb ymm, X and B clear
            &[0xc4, 0xe3, 0x69, 0x4a, 5],       // vblendvps is4
            &[0x62, 0xf1, 0xfe, 0x48, 0x6f, 5], // vmovdqu64
            &[0x62, 0x91, 0xfe, 0x48, 0x6f, 5], // vmovdqu64, X and B clear
            &[0x62, 0xf1, 0x75, 0x58, 0xfe, 5], // vpaddd {1to16}
            &[0x62, 0xf3, 0x6d, 0x48, 0x1f, 5], // vpcmpd imm8
            &[0x8f, 0xe9, 0x78, 0x80, 5],       // vfrczps, XOP
            &[0xff, 0x15],                      // call
        ];
        for case in cases {
            let mut bytes = case.to_vec();
            bytes.extend([0x11, 0x22, 0x33, 0x44, 0xb4, 0x20, 0x90, 0x90]);
            let inst = decode(CodeAddr(0x1000), &bytes).unwrap();
            let operand = inst.rip_operand().unwrap();
            let before = text(inst.addr(), inst.bytes());
            let rip = format!("[{:#x}]", operand.target.0);
            assert!(before.contains(&rip), "{before}");
            let free = inst.bases().unwrap().free;
            let bases = (0u8..16).filter(|&base| free >> base & 1 == 1);
            assert!(bases.clone().count() >= 6, "{before}");
            for base in bases {
                let (bytes, len) = through(&inst, base).unwrap();
                assert!(len as isize <= inst.bytes().len() as isize + THROUGH_GROWS);
                let wanted = before.replace(&rip, &format!("[{}]", NAMES[usize::from(base)]));
                assert_eq!(text(CodeAddr(0), &bytes[..len]), wanted);
                assert_eq!(decode(CodeAddr(0), &bytes[..len]).unwrap().bytes().len(), len);
            }
        }
    }

    #[test]
    fn a_base_is_no_register_that_matters() {
        let bases = |bytes: &[u8]| {
            let bytes: Vec<u8> = bytes.iter().copied().chain([0; 8]).collect();
            decode(CodeAddr(0), &bytes).unwrap().bases().unwrap()
        };
        // mov rbx, []: RBX is its own
        assert_eq!(bases(&[0x48, 0x8b, 0x1d]), Bases { free: 0xffef, own: 8, stack: StackUse::None });
        // add rbx, []; mov bx, []; mov [], ah
        assert_eq!(bases(&[0x48, 0x03, 0x1d]), Bases { free: 0xffe7, own: 0, stack: StackUse::None });
        assert_eq!(bases(&[0x66, 0x8b, 0x1d]), Bases { free: 0xffe7, own: 0, stack: StackUse::None });
        assert_eq!(bases(&[0x88, 0x25]), Bases { free: 0x00ee, own: 0, stack: StackUse::None });
        // cmp rsp, []; mov rsp, []; call []; push []; pop []
        assert_eq!(bases(&[0x48, 0x3b, 0x25]).stack, StackUse::Other);
        assert_eq!(bases(&[0x48, 0x8b, 0x25]), Bases { free: 0xffef, own: 0, stack: StackUse::Other });
        assert_eq!(bases(&[0xff, 0x15]).stack, StackUse::Other);
        assert_eq!(bases(&[0xff, 0x35]).stack, StackUse::Push);
        assert_eq!(bases(&[0x66, 0xff, 0x35]).stack, StackUse::Other);
        assert_eq!(bases(&[0x8f, 0x05]).stack, StackUse::Pop);
        // cmpxchg16b [] uses four without naming them
        assert_eq!(bases(&[0x48, 0x0f, 0xc7, 0x0d]).free & 0b1111, 0);
    }

    #[test]
    fn a_lea_is_its_address() {
        for (register, name) in (0u8..).zip(NAMES) {
            let bytes = [0x48 | register >> 3 << 2, 0x8d, register << 3 & 0x38 | 5, 0, 0, 0, 0];
            let inst = decode(CodeAddr(0), &bytes).unwrap();
            assert_eq!(inst.pointer(), Some(Pointer::Address { register }));
            let address = mov_imm64(register, 0x1122_3344_5566_7788);
            assert_eq!(text(CodeAddr(0), &address), format!("mov {name}, 0x1122334455667788"));
        }
        // lea ax, [rip]; lea eax, [eip]
        for bytes in [&[0x66, 0x8d, 5, 0, 0, 0, 0], &[0x67, 0x8d, 5, 0, 0, 0, 0]] {
            assert_eq!(decode(CodeAddr(0), bytes).unwrap().pointer(), None);
        }
    }
}
