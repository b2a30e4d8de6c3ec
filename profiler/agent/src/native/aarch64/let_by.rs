//! The gate of a function that may have to be let alone: all calls pass it once a byte is set, as if there were no hook.
//!
//! # Safety
//! It changes X17 alone, which no caller counts on: what the linker puts between changes it, too.

use alloc::vec::Vec;
use core::ptr;
use core::sync::atomic::AtomicBool;
use grapnel_hook::way_out;

const X17: u32 = 17;
const INSTRUCTION: usize = 4;

/// The gate of the function at `target`.
pub(crate) fn gate(target: *const (), let_by: &'static AtomicBool) -> Option<Vec<u8>> {
    let at = ptr::from_ref(let_by).expose_provenance();
    let part = |n: usize| (at >> (16 * n) & 0xffff) as u32;
    // MOVZ and MOVK for the rest, 16 bits each.
    let address = (0..4)
        .map(|n| if n == 0 { 0xd280_0000 } else { 0xf280_0000 | (n as u32) << 21 } | part(n) << 5 | X17);
    // LDRB W17, [X17]
    let mut code: Vec<u32> = address.chain([0x3940_0000 | X17 << 5 | X17]).collect();
    // CBZ W17, way out
    let distance = (code.len() * INSTRUCTION + way_out(target)) / INSTRUCTION;
    let back = i32::try_from(distance).ok()?.wrapping_neg().cast_unsigned() & 0x7_ffff;
    code.push(0x3400_0000 | back << 5 | X17);
    Some(code.into_iter().flat_map(u32::to_le_bytes).collect())
}
