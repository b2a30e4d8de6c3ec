//! Displacements, filled in when every instruction has its place.

use arbitrary::{Result, Unstructured};

use super::place;

/// Where a displacement lies in an instruction's bits, the first halfword above the second.
#[derive(Clone, Copy)]
pub(super) enum Field {
    /// 8 bits, of halfwords: B with a condition, narrow.
    Branch8,
    /// 11 bits, of halfwords: B, narrow.
    Branch11,
    /// 20 bits in five parts, of halfwords: B with a condition, wide.
    Branch20,
    /// 24 bits in five parts, of halfwords: B and BL, wide.
    Branch24,
    /// The same from the PC rounded down to words: BLX.
    Exchange24,
    /// 6 bits in two parts, of halfwords, forward: CBZ, CBNZ.
    Forward6,
    /// 8 bits, of words, forward: LDR and ADR, narrow.
    Words8,
    /// 8 bits, of words, and the direction in bit 23: LDRD, VLDR, LDC.
    Words8Up,
    /// 12 bits and the direction in bit 23: loads.
    Offset12,
    /// 12 bits in three parts, and the direction: ADR, wide, as ADD or SUB.
    Adr12,
}

impl Field {
    pub(super) fn filled(
        self,
        entropy: &mut Unstructured<'_>,
        from: u32,
        at: usize,
        starts: &[usize],
    ) -> Result<u32> {
        // The PC reads as the instruction's address and 4, rounded down to words where it is a base
        // (DDI 0487, E1.2.1).
        let pc = at as i64 + 4;
        let base = pc - i64::from((from.wrapping_add(at as u32)) & 2);
        let signed = |entropy: &mut Unstructured<'_>, step: i64, bits: u32| -> Result<(bool, u32)> {
            let displacement = place::displacement(entropy, base, starts, step, bits + 1)? / step;
            Ok((displacement >= 0, (displacement.unsigned_abs() as u32).min((1 << bits) - 1)))
        };
        let up = |up| u32::from(up) << 23;
        Ok(match self {
            Self::Branch8 => (place::displacement(entropy, pc, starts, 2, 8)? / 2) as u32 & 0xff,
            Self::Branch11 => (place::displacement(entropy, pc, starts, 2, 11)? / 2) as u32 & 0x7ff,
            Self::Branch20 => {
                let value = (place::displacement(entropy, pc, starts, 2, 20)? / 2) as u32;
                (value >> 19 & 1) << 26
                    | (value >> 18 & 1) << 11
                    | (value >> 17 & 1) << 13
                    | (value >> 11 & 0x3f) << 16
                    | value & 0x7ff
            }
            Self::Branch24 => long((place::displacement(entropy, pc, starts, 2, 24)? / 2) as u32),
            Self::Exchange24 => long((place::displacement(entropy, base, starts, 4, 23)? / 2) as u32),
            Self::Forward6 => {
                let value = place::displacement(entropy, pc, starts, 2, 7)?.max(0) as u32 / 2;
                (value >> 5 & 1) << 9 | (value & 0x1f) << 3
            }
            Self::Words8 => signed(entropy, 4, 8)?.1,
            Self::Words8Up => {
                let (positive, offset) = signed(entropy, 4, 8)?;
                up(positive) | offset
            }
            Self::Offset12 => {
                let (positive, offset) = signed(entropy, 1, 12)?;
                up(positive) | offset
            }
            Self::Adr12 => {
                let (positive, offset) = signed(entropy, 1, 12)?;
                // ADDW is F20F, SUBW F2AF.
                let opcode = if positive { 0 } else { 0x00a0_0000 };
                opcode | (offset >> 11 & 1) << 26 | (offset >> 8 & 7) << 12 | offset & 0xff
            }
        })
    }
}

/// J1 and J2 hold the bits below the sign, inverted where the sign is clear (DDI 0487, F5.1.19).
fn long(value: u32) -> u32 {
    let sign = value >> 23 & 1;
    let j1 = (value >> 22 & 1) ^ sign ^ 1;
    let j2 = (value >> 21 & 1) ^ sign ^ 1;
    sign << 26 | j1 << 13 | j2 << 11 | (value >> 11 & 0x3ff) << 16 | value & 0x7ff
}
