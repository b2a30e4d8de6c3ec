//! Branches, named by the width of their displacement field. A displacement that exists can be encoded.

use crate::CodeAddr;

/// A displacement that fits a branch's 8-bit field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rel8(i8);

impl Rel8 {
    /// To the instruction behind the branch: also what stands in a field that is filled in later.
    pub const ZERO: Self = Self(0);

    /// Over the next `len` bytes, which must be fewer than 128.
    #[must_use]
    pub const fn forward(len: u8) -> Self {
        assert!(len < 128);
        Self(len.cast_signed())
    }

    /// The displacement from `next`, the end of the branch, to `target`, if it fits.
    #[must_use]
    pub fn between(next: CodeAddr, target: CodeAddr) -> Option<Self> {
        i8::try_from(target.displacement_from(next)).ok().map(Self)
    }

    /// The field's byte.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self.0.cast_unsigned()
    }
}

/// A displacement that fits a 32-bit field: a branch's, or that of a RIP-relative operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rel32(i32);

impl Rel32 {
    /// To what lies behind the instruction: also what stands in a field that is filled in later.
    pub const ZERO: Self = Self(0);

    /// The displacement from `next`, the end of the instruction, to `target`, if it fits.
    #[must_use]
    pub fn between(next: CodeAddr, target: CodeAddr) -> Option<Self> {
        i32::try_from(target.displacement_from(next)).ok().map(Self)
    }

    /// The displacement of an operand under a 32-bit address size, which wraps at 4 GiB and so always fits
    /// (SDM 2.2.1.6: `67` makes the base EIP, and the sum is cut to 32 bits).
    #[must_use]
    pub const fn between_wrapping(next: CodeAddr, target: CodeAddr) -> Self {
        Self(target.displacement_from(next) as i32)
    }

    /// The field's bytes.
    #[must_use]
    pub const fn bytes(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }
}

/// A condition, as the low four bits of the opcodes of Jcc (SDM volume 1, appendix B).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cond(u8);

impl Cond {
    /// The condition in an opcode `7x` or `0F 8x`.
    #[must_use]
    pub const fn of_opcode(opcode: u8) -> Self {
        Self(opcode & 0xf)
    }

    /// The condition that holds exactly when this one does not.
    #[must_use]
    pub const fn inverted(self) -> Self {
        Self(self.0 ^ 1)
    }
}

/// `jmp rel8`.
#[must_use]
pub const fn jmp_rel8(rel: Rel8) -> [u8; 2] {
    [0xeb, rel.byte()]
}

/// `jmp rel32`.
#[must_use]
pub const fn jmp_rel32(rel: Rel32) -> [u8; 5] {
    with_rel32([0xe9], rel)
}

/// `call rel32`.
#[must_use]
pub const fn call_rel32(rel: Rel32) -> [u8; 5] {
    with_rel32([0xe8], rel)
}

/// `jcc rel8`.
#[must_use]
pub const fn jcc_rel8(cond: Cond, rel: Rel8) -> [u8; 2] {
    [0x70 | cond.0, rel.byte()]
}

/// `jcc rel32`.
#[must_use]
pub const fn jcc_rel32(cond: Cond, rel: Rel32) -> [u8; 6] {
    with_rel32([0x0f, 0x80 | cond.0], rel)
}

/// `jmp [rip + rel32]`: through an 8-byte literal.
#[must_use]
pub const fn jmp_mem(rel: Rel32) -> [u8; 6] {
    with_rel32([0xff, 0x25], rel)
}

/// `call [rip + rel32]`: through an 8-byte literal.
#[must_use]
pub const fn call_mem(rel: Rel32) -> [u8; 6] {
    with_rel32([0xff, 0x15], rel)
}

/// `push r64`, with a REX whether it is needed or not. `register` is below 16.
#[must_use]
pub const fn push(register: u8) -> [u8; 2] {
    [0x40 | register >> 3, 0x50 | register & 7]
}

/// `pop r64`, with a REX whether it is needed or not. `register` is below 16.
#[must_use]
pub const fn pop(register: u8) -> [u8; 2] {
    [0x40 | register >> 3, 0x58 | register & 7]
}

/// `push [rsp + disp32]`, which counts from RSP as it was before.
#[must_use]
pub const fn push_rsp_disp32(displacement: i32) -> [u8; 7] {
    with_rel32([0xff, 0xb4, 0x24], Rel32(displacement))
}

/// `pop [rsp + disp32]`, which counts from RSP as it is behind (SDM 2, "POP").
#[must_use]
pub const fn pop_rsp_disp32(displacement: i32) -> [u8; 7] {
    with_rel32([0x8f, 0x84, 0x24], Rel32(displacement))
}

/// `mov dword [rsp], low; mov dword [rsp + 4], high`: a store of 64 bits at the stack's top, which no instruction makes
/// without a register.
#[must_use]
pub const fn store_at_rsp(value: u64) -> [u8; 15] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [0xc7, 0x04, 0x24, a, b, c, d, 0xc7, 0x44, 0x24, 0x04, e, f, g, h]
}

/// `lea rsp, [rsp + disp8]`: moves the stack pointer and no flag.
#[must_use]
pub const fn lea_rsp_disp8(displacement: i8) -> [u8; 5] {
    [0x48, 0x8d, 0x64, 0x24, displacement.cast_unsigned()]
}

/// `lea rsp, [rsp + disp32]`: moves the stack pointer and no flag.
#[must_use]
pub const fn lea_rsp_disp32(displacement: i32) -> [u8; 8] {
    with_rel32([0x48, 0x8d, 0xa4, 0x24], Rel32(displacement))
}

/// An opcode with its 32-bit field behind it. `N` is the opcode's length, `M` must be `N + 4`.
const fn with_rel32<const N: usize, const M: usize>(opcode: [u8; N], rel: Rel32) -> [u8; M] {
    const { assert!(M == N + 4) }
    let mut bytes = [0; M];
    let mut i = 0;
    while i < N {
        bytes[i] = opcode[i];
        i += 1;
    }
    let field = rel.bytes();
    while i < M {
        bytes[i] = field[i - N];
        i += 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rel8_ends_where_its_field_ends() {
        let next = CodeAddr(0x1000);
        assert!(Rel8::between(next, next.offset(127)).is_some());
        assert!(Rel8::between(next, next.offset(128)).is_none());
        assert!(Rel8::between(next, next.offset(-128)).is_some());
        assert!(Rel8::between(next, next.offset(-129)).is_none());
    }

    #[test]
    fn rel32_ends_where_its_field_ends() {
        let next = CodeAddr(0x7fff_0000_1000);
        assert!(Rel32::between(next, next.offset(i64::from(i32::MAX))).is_some());
        assert!(Rel32::between(next, next.offset(i64::from(i32::MAX) + 1)).is_none());
        assert!(Rel32::between(next, next.offset(i64::from(i32::MIN))).is_some());
        assert!(Rel32::between(next, next.offset(i64::from(i32::MIN) - 1)).is_none());
    }

    #[test]
    fn a_condition_inverts_to_its_opposite_and_back() {
        let equal = Cond::of_opcode(0x74);
        assert_eq!(equal.inverted(), Cond::of_opcode(0x85));
        assert_eq!(equal.inverted().inverted(), equal);
    }

    #[test]
    fn branches_are_the_manuals_bytes() {
        let rel = Rel32::between(CodeAddr(0x1005), CodeAddr(0x2005)).unwrap();
        assert_eq!(jmp_rel32(rel), [0xe9, 0, 0x10, 0, 0]);
        assert_eq!(jcc_rel32(Cond::of_opcode(0x75), rel), [0x0f, 0x85, 0, 0x10, 0, 0]);
        assert_eq!(call_mem(rel), [0xff, 0x15, 0, 0x10, 0, 0]);
    }
}
