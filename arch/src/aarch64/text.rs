//! An instruction as text, in Arm's syntax.

use alloc::{format, string::String};

use crate::CodeAddr;

/// The instruction that `bytes` begin with, as text; `(bad)` if there is none. It allocates.
#[must_use]
pub fn text(addr: CodeAddr, bytes: &[u8]) -> String {
    match exarmo_aarch64::decode_bytes(bytes) {
        Ok(inst) => format!("{}", inst.at(addr.0)).replace('\t', " "),
        Err(_) => String::from("(bad)"),
    }
}
