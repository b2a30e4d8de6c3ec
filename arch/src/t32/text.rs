//! An instruction as text, in Arm's syntax.

use alloc::{format, string::String};

use exarmo_aarch32::{ItState, t32};

use super::It;
use crate::CodeAddr;

/// How long the instruction is whose first halfword this is, in bytes (DDI 0406, A6.1).
#[must_use]
pub const fn len(first: u16) -> usize {
    if first >> 11 >= 0b11101 { 4 } else { 2 }
}

/// The instruction that `bytes` begin with, outside an IT block, as text; `(bad)` if there is none. It allocates.
#[must_use]
pub fn text(addr: CodeAddr, bytes: &[u8]) -> String {
    text_in(addr, bytes, It::OUTSIDE)
}

/// The same at any place of an IT block.
#[must_use]
pub fn text_in(addr: CodeAddr, bytes: &[u8], it: It) -> String {
    text_within(addr, bytes, &mut it.state()).1
}

/// The same within an IT block, and its length in bytes.
pub(crate) fn text_within(addr: CodeAddr, bytes: &[u8], state: &mut ItState) -> (usize, String) {
    let len = match bytes {
        [low, high, ..] => len(u16::from_le_bytes([*low, *high])),
        _ => bytes.len(),
    };
    match t32::decode_bytes(bytes, *state) {
        Ok(inst) => {
            *state = state.after(&inst);
            (len, format!("{}", inst.at(addr.0)).replace('\t', " "))
        }
        Err(_) => {
            *state = ItState::Outside;
            (len, String::from("(bad)"))
        }
    }
}
