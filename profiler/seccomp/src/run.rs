//! Running a filter.

use crate::{Call, Instruction};

/// The classes and operations of the kernel's `linux/bpf_common.h`, as far as filters for system calls have them.
pub(crate) mod code {
    pub(crate) const LD_ABS: u16 = 0x20;
    pub(crate) const LD_LEN: u16 = 0x80;
    pub(crate) const LDX_LEN: u16 = 0x81;
    pub(crate) const LD_IMM: u16 = 0x00;
    pub(crate) const LDX_IMM: u16 = 0x01;
    pub(crate) const LD_MEM: u16 = 0x60;
    pub(crate) const LDX_MEM: u16 = 0x61;
    pub(crate) const ST: u16 = 0x02;
    pub(crate) const STX: u16 = 0x03;
    pub(crate) const TAX: u16 = 0x07;
    pub(crate) const TXA: u16 = 0x87;
    pub(crate) const RET_K: u16 = 0x06;
    pub(crate) const RET_A: u16 = 0x16;
    pub(crate) const JA: u16 = 0x05;

    /// The part of a code that says what kind of instruction it is.
    pub(crate) const CLASS: u16 = 0x07;
    pub(crate) const ALU: u16 = 0x04;
    pub(crate) const JMP: u16 = 0x05;
    /// Set where X is the second operand, and not the constant.
    pub(crate) const X: u16 = 0x08;
}

/// `sizeof(struct seccomp_data)`, which filters see as the length of their packet.
pub(crate) const LENGTH: u32 = 64;

/// What an operation gives; `None` for one that there isn't. `Err` where the filter ends at it with this answer.
pub(crate) fn computed(code: u16, a: u32, operand: u32) -> Option<Result<u32, u32>> {
    Some(Ok(match code & 0xf0 {
        0x00 => a.wrapping_add(operand),
        0x10 => a.wrapping_sub(operand),
        0x20 => a.wrapping_mul(operand),
        // A filter that divides by nothing answers 0: the thread is killed.
        0x30 => match a.checked_div(operand) {
            Some(quotient) => quotient,
            None => return Some(Err(0)),
        },
        0x40 => a | operand,
        0x50 => a & operand,
        // By the lowest five bits, as processors do.
        0x60 => a.wrapping_shl(operand),
        0x70 => a.wrapping_shr(operand),
        0x80 => a.wrapping_neg(),
        0xa0 => a ^ operand,
        _ => return None,
    }))
}

/// Whether a comparison holds; `None` for one that there isn't.
pub(crate) fn holds(code: u16, a: u32, operand: u32) -> Option<bool> {
    match code & 0xf0 {
        0x10 => Some(a == operand),
        0x20 => Some(a > operand),
        0x30 => Some(a >= operand),
        0x40 => Some(a & operand != 0),
        _ => None,
    }
}

/// What the filter answers to the call. `None` if it looks at what isn't known of the call, or is none that the kernel takes.
pub fn answer(filter: &[Instruction], call: &Call) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0usize;
    loop {
        let Instruction { code, jt, jf, k } = *filter.get(at)?;
        at += 1;
        match code {
            code::LD_ABS => a = call.word(k)?,
            code::LD_LEN => a = LENGTH,
            code::LDX_LEN => x = LENGTH,
            code::LD_IMM => a = k,
            code::LDX_IMM => x = k,
            code::LD_MEM => a = *memory.get(k as usize)?,
            code::LDX_MEM => x = *memory.get(k as usize)?,
            code::ST => *memory.get_mut(k as usize)? = a,
            code::STX => *memory.get_mut(k as usize)? = x,
            code::TAX => x = a,
            code::TXA => a = x,
            code::RET_K => return Some(k),
            code::RET_A => return Some(a),
            code::JA => at = at.checked_add(k as usize)?,
            _ => {
                let operand = if code & code::X == 0 { k } else { x };
                match code & code::CLASS {
                    code::ALU => match computed(code, a, operand)? {
                        Ok(value) => a = value,
                        Err(answer) => return Some(answer),
                    },
                    code::JMP => at += usize::from(if holds(code, a, operand)? { jt } else { jf }),
                    _ => return None,
                }
            }
        }
    }
}
