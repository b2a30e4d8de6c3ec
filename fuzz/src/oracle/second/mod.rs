//! A second opinion on decoding: length, flow and use of the program counter, against decoders of other descent.

mod aarch64;
mod view;
mod x86_64;

use capstone::Capstone;
use grapnel_arch::aarch64 as a64;
use grapnel_relocator::{CodeAddr, Isa};

pub use self::view::Finding;
use self::view::{View, compare};

/// What the other decoders make of code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Opinion {
    /// The same.
    Agrees,
    /// One knows no such instruction.
    Unknown,
    /// Something else: who, on which instruction, and what.
    Differs {
        /// The other decoder's name and the instruction's.
        on: String,
        /// Both views.
        how: String,
    },
}

/// Decoders of other descent.
pub struct Second {
    x86_64: x86_64::Second,
    aarch64: Capstone,
}

/// An instruction, and what comes of comparing it with each other decoder, by name.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// How many bytes it takes.
    pub len: usize,
    /// Where it can't be decoded at all, there is nothing.
    pub findings: Vec<(&'static str, Finding)>,
}

impl Second {
    /// Starts the decoders.
    ///
    /// # Errors
    ///
    /// If one can't be had.
    pub fn new() -> Result<Self, capstone::Error> {
        Ok(Self { x86_64: x86_64::Second::new()?, aarch64: aarch64::capstone()? })
    }

    /// Looks at each instruction of a window's code.
    #[must_use]
    pub fn opinion(&self, isa: Isa, from: CodeAddr, code: &[u8]) -> Opinion {
        let mut opinion = Opinion::Agrees;
        let mut at = 0;
        while at < code.len() {
            let addr = from.add(at as u64);
            let inspected = self.inspect(isa, addr, &code[at..]);
            for (who, finding) in inspected.findings {
                match finding {
                    Finding::Agrees | Finding::Refused | Finding::TheirError(_) => {}
                    Finding::Unknown | Finding::OnlyTheirs => opinion = Opinion::Unknown,
                    Finding::Differs(how) => {
                        let text = grapnel_arch::listing(isa, addr, &code[at..at + inspected.len]);
                        let text = text.into_iter().next().map(|line| line.text).unwrap_or_default();
                        let mnemonic = text.split(' ').next().unwrap_or_default();
                        let on = format!("{who} on {mnemonic}");
                        return Opinion::Differs { on, how: format!("{text} at {addr}\n{how}") };
                    }
                }
            }
            at += inspected.len;
        }
        opinion
    }

    /// Compares the first instruction.
    #[must_use]
    pub fn inspect(&self, isa: Isa, addr: CodeAddr, bytes: &[u8]) -> Inspected {
        match isa {
            Isa::X86_64 => self.x86_64.inspect(addr, bytes),
            Isa::Aarch64 => self.aarch64(addr, bytes),
            Isa::A32 | Isa::T32 => Inspected { len: 4, findings: Vec::new() },
        }
    }

    fn aarch64(&self, addr: CodeAddr, bytes: &[u8]) -> Inspected {
        let Some(&word) = bytes.first_chunk() else {
            return Inspected { len: bytes.len(), findings: Vec::new() };
        };
        let word = u32::from_le_bytes(word);
        let inst = a64::decode(addr, bytes).ok();
        let mut findings = Vec::new();
        let mut add = |who, theirs: Option<View>, errata| {
            let finding = match inst.as_ref().map(aarch64::ours) {
                Some(Some(ours)) => compare(word, &ours, theirs, errata),
                Some(None) => Finding::Refused,
                None if theirs.is_some() => Finding::OnlyTheirs,
                None => return,
            };
            findings.push((who, finding));
        };
        add("capstone", aarch64::by_capstone(&self.aarch64, addr, word), aarch64::CAPSTONE);
        #[cfg(feature = "yaxpeax")]
        add("yaxpeax", aarch64::by_yaxpeax(addr, word), aarch64::YAXPEAX);
        Inspected { len: 4, findings }
    }
}
