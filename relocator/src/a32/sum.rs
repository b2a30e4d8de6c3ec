//! A sum of the PC and the very register that is overwritten: `add r4, pc, r4`, and the load `ldr r3, [pc, r3]`.
//!
//! Such code is in every position-independent function. The register can't take the PC's value, because it holds the
//! other half of the sum; but a constant can be added to it byte by byte, which needs no other register and sets no
//! flag.

use grapnel_arch::a32::{
    Cond, Form, Inst, Opcode, PC, SP,
    encode::{Modified, add, mov_shifted, rsb, sub},
    field, pc,
};

/// `register = constant + shifted register`, or with the register's sign turned; and then a load from there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sum {
    register: u8,
    /// Bits 11 to 4: how the register is shifted before.
    shift: u32,
    negated: bool,
    constant: u32,
    /// The load, without an offset.
    load: Option<u32>,
}

/// The most instructions that it takes: a shift, four bytes of a constant, a load.
pub(super) const MAX_SUM: usize = 6;

const ADDS: u32 = 1 << 23;

impl Sum {
    /// The instruction as such a sum, if it is one.
    pub(super) fn of(inst: &Inst) -> Option<Self> {
        let word = inst.word();
        let register = |at: u32| (word >> at & 15) as u8;
        let (rn, rd, rm) = (register(16), register(12), register(0));
        let here = pc(inst.addr()).0 as u32;
        if rd == PC || rd == SP {
            return None;
        }
        let sum = |shift, negated, constant| Self { register: rd, shift, negated, constant, load: None };
        match (inst.form(), inst.pc_reads().rn, inst.pc_reads().rm) {
            (Form::DataRegister, true, false) if rm == rd && !inst.sets_flags() => {
                let shift = word & 0xff0;
                match Opcode::of(word) {
                    Opcode::ADD => Some(sum(shift, false, here)),
                    Opcode::SUB => Some(sum(shift, true, here)),
                    Opcode::RSB => Some(sum(shift, false, here.wrapping_neg())),
                    _ => None,
                }
            }
            (Form::DataRegister, false, true) if rn == rd && !inst.sets_flags() => {
                let operand = shifted(here, word)?;
                match Opcode::of(word) {
                    Opcode::ADD => Some(sum(0, false, operand)),
                    Opcode::SUB => Some(sum(0, false, operand.wrapping_neg())),
                    Opcode::RSB => Some(sum(0, true, operand)),
                    _ => None,
                }
            }
            (form @ (Form::WordRegister | Form::ExtraRegister), true, false)
                if rm == rd && inst.uses().writes >> rd & 1 == 1 =>
            {
                let (shift, immediate) = match form {
                    Form::WordRegister => (word & 0xff0, word & !(1 << 25 | 0xfff)),
                    _ => (0, (word | 1 << 22) & !0xf0f),
                };
                let load = field(immediate | ADDS, 16, rd);
                Some(Self { load: Some(load), ..sum(shift, word & ADDS == 0, here) })
            }
            _ => None,
        }
    }

    /// Writes it, each instruction under the condition: none sets flags.
    pub(super) fn emit(&self, cond: Cond, mut word: impl FnMut(u32)) {
        let rd = self.register;
        if self.shift != 0 {
            word(mov_shifted(cond, rd, rd, self.shift));
        }
        let (plus, minus) = (self.constant, self.constant.wrapping_neg());
        let mut turn = self.negated;
        let downwards = !self.negated && pieces(minus).count() < pieces(plus).count();
        for piece in pieces(if downwards { minus } else { plus }) {
            word(match (turn, downwards) {
                (true, _) => rsb(cond, rd, rd, piece),
                (false, true) => sub(cond, rd, rd, piece),
                (false, false) => add(cond, rd, rd, piece),
            });
            turn = false;
        }
        // Nothing to add; but an instruction has a place of its own in the map.
        if self.constant == 0 {
            word(if turn { rsb(cond, rd, rd, Modified::ZERO) } else { add(cond, rd, rd, Modified::ZERO) });
        }
        if let Some(load) = self.load {
            word(load);
        }
    }
}

/// Constants of 8 bits, at most four, whose sum is `value`.
fn pieces(value: u32) -> impl Iterator<Item = Modified> {
    let mut left = value;
    core::iter::from_fn(move || {
        let place = left.trailing_zeros() & !1;
        let piece = left & 0xff_u32.checked_shl(place)?;
        left -= piece;
        Modified::new(piece).filter(|_| piece != 0)
    })
}

/// A constant shifted by a constant as bits 11 to 5 of the word say (DDI 0406, A8.4.3); `None` for RRX, which takes
/// the carry.
fn shifted(value: u32, word: u32) -> Option<u32> {
    let amount = word >> 7 & 31;
    match (word >> 5 & 3, amount) {
        (0, _) => Some(value << amount),
        (1, 0) => Some(0),
        (1, _) => Some(value >> amount),
        (2, 0) => Some((value.cast_signed() >> 31).cast_unsigned()),
        (2, _) => Some((value.cast_signed() >> amount).cast_unsigned()),
        (_, 0) => None,
        _ => Some(value.rotate_right(amount)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_constant_is_the_sum_of_at_most_four_pieces() {
        for value in [0, 1, 0x100, 0x1fe, 0x8765_4321, u32::MAX, 0xf000_000f, 0x0102_0304, 0x5555_5555] {
            let mut sum = 0_u32;
            let mut count = 0;
            for piece in pieces(value) {
                sum = sum.wrapping_add(grapnel_arch::a32::modified_immediate(add(Cond::ALWAYS, 0, 0, piece)));
                count += 1;
            }
            assert_eq!(sum, value);
            assert!(count <= 4, "{value:#x} {count}");
        }
    }
}
