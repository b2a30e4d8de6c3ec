//! Instructions that call functions.

use crate::call::bytes_before;

/// Whether a call returns to `pc`.
///
/// Off the hot path: asks the kernel whether the code can be read.
pub(super) fn returns_to(pc: u64) -> bool {
    is_behind(&bytes_before(pc))
}

/// Whether an instruction that calls a function ends behind these bytes (Intel SDM, CALL): E8 with an offset, or FF /2, by the length of
/// what its ModR/M byte says. A REX prefix lies before them.
fn is_behind(bytes: &[u8; 8]) -> bool {
    const DISP32_ALONE: u8 = 5;
    match *bytes {
        // With a base in SIB and 32 bits, or 32 bits alone.
        [_, 0xff, 0x94, ..] => true,
        [_, 0xff, 0x14, sib, ..] if sib & 7 == DISP32_ALONE => true,
        // With a register and 32 bits, or with rip.
        [_, _, 0xff, 0x90..=0x93 | 0x95..=0x97 | 0x15, ..] => true,
        [_, _, _, 0xe8, ..] => true,
        // With SIB and 8 bits.
        [_, _, _, _, 0xff, 0x54, ..] => true,
        // With a register and 8 bits, or with SIB.
        [.., 0xff, 0x50..=0x53 | 0x55..=0x57, _] => true,
        [.., 0xff, 0x14, sib] if sib & 7 != DISP32_ALONE => true,
        // In a register, or where one points.
        [.., 0xff, 0xd0..=0xd7 | 0x10..=0x13 | 0x16..=0x17] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_all_lengths() {
        let calls: [&[u8]; 14] = [
            &[0xff, 0xd7],
            &[0x41, 0xff, 0xd4],
            &[0xff, 0x10],
            &[0xff, 0x16],
            &[0xff, 0x14, 0x24],
            &[0xff, 0x50, 0x18],
            &[0xff, 0x54, 0x24, 0x08],
            &[0xe8, 1, 2, 3, 4],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0xff, 0x90, 1, 2, 3, 4],
            &[0xff, 0x94, 0x24, 1, 2, 3, 4],
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4],
            &[0x42, 0xff, 0x14, 0xc5, 1, 2, 3, 4],
            &[0x41, 0xff, 0x57, 0x10],
        ];
        let others: [&[u8]; 8] = [
            &[0xff, 0xe0],
            &[0xff, 0x14],
            &[0xff, 0x15],
            &[0xff, 0x14, 0xc5],
            &[0xff, 0x60, 0x18],
            &[0xff, 0xd0, 0x90],
            &[0xe9, 1, 2, 3, 4],
            &[],
        ];
        for (all, expected) in [(&calls[..], true), (&others[..], false)] {
            for instruction in all {
                let mut bytes = [0; 8];
                bytes[8 - instruction.len()..].copy_from_slice(instruction);
                assert_eq!(is_behind(&bytes), expected, "{instruction:x?}");
            }
        }
    }
}
