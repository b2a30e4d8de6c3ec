//! Instructions that call functions.

use crate::call::bytes_before;

/// Whether a call returns to `pc`.
///
/// Off the hot path: asks the kernel whether the code can be read.
pub(super) fn returns_to(pc: u64) -> bool {
    let [.., a, b, c, d] = bytes_before(pc);
    pc.is_multiple_of(4) && is_call(u32::from_le_bytes([a, b, c, d]))
}

/// BL; BLR, and those that check a signature first.
fn is_call(instruction: u32) -> bool {
    instruction & 0xfc00_0000 == 0x9400_0000 || instruction & 0xfeff_f000 == 0xd63f_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls() {
        // bl, both ways; blr x1; blraaz x8; blraa x8, x9; blrab x8, sp
        for call in [0x9400_0010, 0x97ff_fff0, 0xd63f_0020, 0xd63f_091f, 0xd73f_0909, 0xd73f_0d1f] {
            assert!(is_call(call), "{call:x}");
        }
        // b; br x1; ret; braa x8, x9; nop; nothing
        for other in [0x1400_0010, 0xd61f_0020, 0xd65f_03c0, 0xd71f_0909, 0xd503_201f, 0] {
            assert!(!is_call(other), "{other:x}");
        }
    }
}
