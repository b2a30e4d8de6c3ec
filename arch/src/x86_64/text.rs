//! An instruction as text, in Intel's syntax.

use alloc::string::String;

use iced_x86::{Decoder, DecoderOptions, FastFormatter};

use crate::CodeAddr;

/// The instruction that `bytes` begin with, as text; `(bad)` if there is none. It allocates.
#[must_use]
pub fn text(addr: CodeAddr, bytes: &[u8]) -> String {
    let mut decoder = Decoder::with_ip(64, bytes, addr.0, DecoderOptions::NONE);
    let inst = decoder.decode();
    let mut out = String::new();
    let mut formatter = FastFormatter::new();
    let options = formatter.options_mut();
    options.set_space_after_operand_separator(true);
    options.set_use_hex_prefix(true);
    options.set_uppercase_hex(false);
    formatter.format(&inst, &mut out);
    out
}
