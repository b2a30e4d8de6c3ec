//! One instruction, and what a relocator must know of it.

use exarmo_aarch32::{Mnemonic, a32};

use super::{
    Cond, Flow, Form, INST_LEN, Uses,
    flow::flow,
    form::{bit, nibble},
};
use crate::{CodeAddr, DecodeError};

/// An instruction with its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inst {
    addr: CodeAddr,
    word: u32,
    form: Form,
    flow: Flow,
    uses: Uses,
    exclusive: Option<Exclusive>,
}

/// What an instruction does to the reservation of an exclusive load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exclusive {
    /// It makes one.
    Load,
    /// It needs it, or drops it.
    Store,
}

impl Inst {
    /// The address it runs at.
    #[must_use]
    pub const fn addr(&self) -> CodeAddr {
        self.addr
    }

    /// The address behind it.
    #[must_use]
    pub const fn next(&self) -> CodeAddr {
        self.addr.add(INST_LEN as u64)
    }

    /// The instruction as a number.
    #[must_use]
    pub const fn word(&self) -> u32 {
        self.word
    }

    /// Its bytes: instructions are little-endian, whatever the data are.
    #[must_use]
    pub const fn bytes(&self) -> [u8; INST_LEN] {
        self.word.to_le_bytes()
    }

    /// When it does anything. Instructions without a condition always do.
    #[must_use]
    pub fn cond(&self) -> Cond {
        Cond::from_bits(nibble(self.word, 28)).unwrap_or(Cond::ALWAYS)
    }

    /// What kind of instruction it is.
    #[must_use]
    pub const fn form(&self) -> Form {
        self.form
    }

    /// The register that has the address which it calls.
    #[must_use]
    pub const fn callee(&self) -> Option<u8> {
        match self.flow {
            Flow::CallIndirect => Some((self.word & 15) as u8),
            _ => None,
        }
    }

    /// How it leaves, if its condition holds.
    #[must_use]
    pub const fn flow(&self) -> Flow {
        self.flow
    }

    /// The core registers that it reads and writes, if its condition holds.
    #[must_use]
    pub const fn uses(&self) -> Uses {
        self.uses
    }

    /// What it does to the reservation of an exclusive load.
    #[must_use]
    pub const fn exclusive(&self) -> Option<Exclusive> {
        self.exclusive
    }

    /// No execution goes on behind it (a breakpoint's does).
    #[must_use]
    pub fn is_exit(&self) -> bool {
        let leaves =
            matches!(self.flow, Flow::Jump { .. } | Flow::JumpIndirect | Flow::Return | Flow::Undefined);
        leaves && self.cond().is_always()
    }

    /// It sets the flags: S in data processing, comparisons among it.
    #[must_use]
    pub const fn sets_flags(&self) -> bool {
        self.form.is_data() && bit(self.word, 20)
    }

    /// `nop`, in its own encoding or as `mov r0, r0`.
    #[must_use]
    pub const fn is_padding(&self) -> bool {
        matches!(self.word, 0xe320_f000 | 0xe1a0_0000)
    }
}

/// Decodes the first instruction of `bytes`, which runs at `addr`, a multiple of 4 below 4 GiB.
///
/// # Errors
///
/// [`DecodeError`] if there is no whole, defined and predictable instruction.
pub fn decode(addr: CodeAddr, bytes: &[u8]) -> Result<Inst, DecodeError> {
    let bytes = bytes.first_chunk::<INST_LEN>().ok_or(DecodeError::Truncated)?;
    let word = u32::from_le_bytes(*bytes);
    let raw = a32::decode_word(word).map_err(|_| DecodeError::Undefined)?;
    let form = Form::of(word);
    if raw.unpredictable() || form == Form::Block && stores_unknown(word) {
        return Err(DecodeError::Unpredictable);
    }
    let exclusive = if form == Form::Other { exclusive(raw.mnemonic()) } else { None };
    Ok(Inst {
        addr,
        word,
        form,
        flow: flow(addr, form, word, &raw),
        uses: Uses::of(form, word, &raw),
        exclusive,
    })
}

/// STM that writes its base back, and stores it, but not as the lowest register: what it stores is not known
/// (DDI 0406, A8.8.199).
const fn stores_unknown(word: u32) -> bool {
    let (base, list) = (nibble(word, 16), word as u16);
    !bit(word, 20) && bit(word, 21) && list >> base & 1 == 1 && list.trailing_zeros() != base as u32
}

const fn exclusive(mnemonic: Mnemonic) -> Option<Exclusive> {
    match mnemonic {
        Mnemonic::Ldrex
        | Mnemonic::Ldrexb
        | Mnemonic::Ldrexd
        | Mnemonic::Ldrexh
        | Mnemonic::Ldaex
        | Mnemonic::Ldaexb
        | Mnemonic::Ldaexd
        | Mnemonic::Ldaexh => Some(Exclusive::Load),
        Mnemonic::Strex
        | Mnemonic::Strexb
        | Mnemonic::Strexd
        | Mnemonic::Strexh
        | Mnemonic::Stlex
        | Mnemonic::Stlexb
        | Mnemonic::Stlexd
        | Mnemonic::Stlexh
        | Mnemonic::Clrex => Some(Exclusive::Store),
        _ => None,
    }
}
