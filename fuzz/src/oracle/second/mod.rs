//! A second opinion on decoding: length, flow and use of the program counter, against decoders of other descent.

mod aarch32;
mod aarch64;
mod ahead;
mod step;
mod view;
mod x86_64;

use capstone::{Capstone, arch::arm::ArchMode};
use grapnel_arch::{DecodeError, a32, aarch64 as a64, t32};
use grapnel_relocator::{CodeAddr, Isa};

pub use self::view::Finding;
use self::view::{Erratum, View, compare};

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
    a32: Capstone,
    t32: Capstone,
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
        Ok(Self {
            x86_64: x86_64::Second::new()?,
            aarch64: aarch64::capstone()?,
            a32: aarch32::capstone(ArchMode::Arm)?,
            t32: aarch32::capstone(ArchMode::Thumb)?,
        })
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
            Isa::A32 => self.a32(addr, bytes),
            Isa::T32 => self.t32(addr, bytes),
        }
    }

    fn aarch64(&self, addr: CodeAddr, bytes: &[u8]) -> Inspected {
        let Some(&word) = bytes.first_chunk() else {
            return Inspected { len: bytes.len(), findings: Vec::new() };
        };
        let word = u32::from_le_bytes(word);
        let ours = match a64::decode(addr, bytes) {
            Ok(inst) => aarch64::ours(&inst).map_or(Ours::Refused, Ours::Known),
            Err(_) => Ours::Unknown,
        };
        let mut findings = Vec::new();
        let capstone = |_: &View| aarch64::by_capstone(&self.aarch64, addr, word);
        findings.extend(ours.held_against("capstone", word, capstone, aarch64::CAPSTONE));
        #[cfg(feature = "yaxpeax")]
        {
            let yaxpeax = |_: &View| aarch64::by_yaxpeax(addr, word);
            findings.extend(ours.held_against("yaxpeax", word, yaxpeax, aarch64::YAXPEAX));
        }
        Inspected { len: 4, findings }
    }

    fn a32(&self, addr: CodeAddr, bytes: &[u8]) -> Inspected {
        let Some(bytes) = bytes.get(..4) else {
            return Inspected { len: bytes.len(), findings: Vec::new() };
        };
        let word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        let ours = match a32::decode(addr, bytes) {
            Ok(inst) => aarch32::ours_a32(&inst).map_or(Ours::Refused, Ours::Known),
            Err(DecodeError::Unpredictable) => Ours::Refused,
            Err(_) => Ours::Unknown,
        };
        let mut findings = Vec::new();
        let capstone = |_: &View| aarch32::by_capstone(&self.a32, addr, bytes, 8);
        findings.extend(ours.held_against("capstone", word, capstone, aarch32::CAPSTONE_A32));
        #[cfg(feature = "yaxpeax")]
        {
            let yaxpeax = |ours: &View| aarch32::by_yaxpeax(addr, bytes, false, ours);
            findings.extend(ours.held_against("yaxpeax", word, yaxpeax, aarch32::YAXPEAX_A32));
        }
        Inspected { len: 4, findings }
    }

    fn t32(&self, addr: CodeAddr, bytes: &[u8]) -> Inspected {
        let &[a, b, ref rest @ ..] = bytes else {
            return Inspected { len: bytes.len(), findings: Vec::new() };
        };
        let first = u16::from_le_bytes([a, b]);
        let (len, second) = match (t32::len(first), rest) {
            (4, &[c, d, ..]) => (4, u16::from_le_bytes([c, d])),
            (4, _) => return Inspected { len: bytes.len(), findings: Vec::new() },
            _ => (2, 0),
        };
        let word = u32::from(first) << 16 | u32::from(second);
        let ours = match t32::decode(addr, bytes) {
            Ok(inst) => aarch32::ours_t32(&inst).map_or(Ours::Refused, Ours::Known),
            Err(DecodeError::Unpredictable) => Ours::Refused,
            Err(_) => Ours::Unknown,
        };
        // More bytes than it may have, or a length that is too short would not be seen.
        let mut padded = bytes[..len].to_vec();
        padded.resize(4, 0);
        let mut findings = Vec::new();
        let capstone = |_: &View| aarch32::by_capstone(&self.t32, addr, &padded, 4);
        findings.extend(ours.held_against("capstone", word, capstone, aarch32::CAPSTONE_T32));
        #[cfg(feature = "yaxpeax")]
        {
            let yaxpeax = |ours: &View| aarch32::by_yaxpeax(addr, &padded, true, ours);
            findings.extend(ours.held_against("yaxpeax", word, yaxpeax, aarch32::YAXPEAX_T32));
        }
        Inspected { len, findings }
    }
}

/// What our decoder says of bytes.
#[derive(Clone, Copy)]
enum Ours {
    Known(View),
    /// It refuses them by name.
    Refused,
    /// They are no instruction.
    Unknown,
}

impl Ours {
    fn held_against(
        self,
        who: &'static str,
        word: u32,
        theirs: impl Fn(&View) -> Option<View>,
        errata: &[Erratum],
    ) -> Option<(&'static str, Finding)> {
        let finding = match self {
            Self::Known(ours) => compare(word, &ours, theirs(&ours), errata),
            Self::Refused => Finding::Refused,
            Self::Unknown => {
                theirs(&View::default())?;
                Finding::OnlyTheirs
            }
        };
        Some((who, finding))
    }
}
