//! An instruction as text, in Arm's syntax.

use alloc::{format, string::String};

use exarmo_aarch32::a32;

use crate::CodeAddr;

/// The instruction that `bytes` begin with, as text; `(bad)` if there is none. It allocates.
#[must_use]
pub fn text(addr: CodeAddr, bytes: &[u8]) -> String {
    match a32::decode_bytes(bytes) {
        Ok(inst) => format!("{}", inst.at(addr.0)).replace('\t', " "),
        Err(_) => String::from("(bad)"),
    }
}
