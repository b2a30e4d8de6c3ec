//! Where a window ends.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr, Isa,
    t32::{Flow, Inst, It, Literal, PcUse, decode},
};

use super::{Insts, MAX_INSTS, MAX_WINDOW, SIGHT, culprit};
use crate::{
    Error, Window, WindowOptions,
    window::{Insts as AnyInsts, function_ends, next, padding},
};

/// T32 code of this length can be at this address: an even one, and all of it below 4 GiB.
pub(super) fn can_be_at(at: CodeAddr, len: usize) -> Result<(), Error> {
    if !at.0.is_multiple_of(2) {
        return Err(Error::Misaligned { at, align: 2 });
    }
    let below = (1_u64 << 32).checked_sub(len as u64).is_some_and(|last| at.0 <= last);
    if below { Ok(()) } else { Err(Error::BeyondAddressSpace { at, isa: Isa::T32 }) }
}

/// An IT block is a unit: the window starts outside one, and ends outside one.
pub(crate) fn window(
    from: CodeAddr,
    bytes: &[u8],
    min_len: usize,
    options: WindowOptions,
) -> Result<Window, Error> {
    can_be_at(from, MAX_WINDOW)?;
    let mut sweep =
        Sweep { from, bytes, min_len: min_len.max(1), options, code: ArrayVec::new(), len: 0, padded: None };
    sweep.run()?;
    if let (Some(last), Some(extent)) = (sweep.code.last(), options.extent)
        && sweep.len > extent
    {
        return Err(Error::BeyondExtent { culprit: culprit(last), extent });
    }
    let len = sweep.padded.unwrap_or(sweep.len);
    let end = options.extent.unwrap_or(usize::MAX).min(bytes.len());
    let ahead = bytes.get(len..end).unwrap_or_default();
    let insts = Insts {
        code: sweep.code,
        bytes: bytes.iter().copied().take(len).take(MAX_WINDOW).collect(),
        ahead: ahead.iter().copied().take(SIGHT).collect(),
    };
    Ok(Window { from, len, code_len: sweep.len, insts: AnyInsts::T32(insts) })
}

/// What lies at the end of what was seen so far.
enum Behind {
    /// Another instruction of the function.
    Code,
    /// This many bytes that are no instructions of the window: literals, and what no branch of it leads to.
    Data(usize),
    /// Nothing of the function.
    Ends,
}

struct Sweep<'a> {
    from: CodeAddr,
    bytes: &'a [u8],
    min_len: usize,
    options: WindowOptions,
    code: ArrayVec<Inst, MAX_INSTS>,
    len: usize,
    /// The window's length with the padding that it needs.
    padded: Option<usize>,
}

impl Sweep<'_> {
    fn run(&mut self) -> Result<(), Error> {
        let mut it = It::OUTSIDE;
        while self.len < self.min_len || it.is_inside() {
            match self.behind()? {
                Behind::Code => {}
                Behind::Data(len) => {
                    if self.rest().len() < len {
                        return Err(Error::Truncated { at: self.here() });
                    }
                    self.len += len;
                    continue;
                }
                Behind::Ends => {
                    let last = self.code.last().ok_or(Error::Truncated { at: self.from })?;
                    let lens = (self.len, self.min_len);
                    self.padded = Some(padding(last, self.from, self.bytes, lens, self.options)?);
                    return Ok(());
                }
            }
            let inst = next(&self.code, self.here(), self.rest())?;
            it = inst.next_it();
            self.len += inst.bytes().len();
            self.code.push(inst);
        }
        Ok(())
    }

    fn here(&self) -> CodeAddr {
        self.from.add(self.len as u64)
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.len..).unwrap_or_default()
    }

    /// With an extent, whether the function goes on is a matter of its length. Without one, what lies behind an exit
    /// belongs to the function only if a branch or a load of the window leads there, or further on in what the window
    /// still needs.
    fn behind(&self) -> Result<Behind, Error> {
        let Some(last) = self.code.last() else { return Ok(Behind::Code) };
        // Without an extent the answer is below, where data and padding are told apart.
        if function_ends(last, self.len, self.options.extent, || true)? {
            return Ok(Behind::Ends);
        }
        let here = self.here();
        if !last.is_exit() || self.targets().any(|target| target == here) {
            return Ok(Behind::Code);
        }
        let inside = |literal: &Literal| here.offset_within(literal.target, u64::from(literal.access));
        if let Some((literal, offset)) =
            self.literals().find_map(|literal| inside(&literal).map(|offset| (literal, offset)))
        {
            return Ok(Behind::Data(usize::from(literal.access) - offset as usize));
        }
        let missing = (self.min_len - self.len) as u64;
        let ahead = self
            .targets()
            .chain(self.literals().map(|literal| literal.target))
            .filter_map(|target| target.offset_within(here, missing))
            .min();
        Ok(match (ahead, last.flow()) {
            (Some(gap), _) => Behind::Data(gap as usize),
            // `bx pc` skips the halfword behind it.
            (None, Flow::JumpA32 { target }) if target == here.add(2) => Behind::Data(2),
            // `nop` to align a literal of the window: both are behind the function's last exit.
            (None, _) if self.aligns_literal(here) => Behind::Data(2),
            (None, _) if self.options.extent.is_some() => {
                Behind::Data(decode(here, self.rest()).map_or(2, |inst| inst.bytes().len()))
            }
            (None, _) => Behind::Ends,
        })
    }

    fn aligns_literal(&self, here: CodeAddr) -> bool {
        let padded = decode(here, self.rest()).is_ok_and(|inst| inst.is_padding() && inst.bytes().len() == 2);
        padded && self.literals().any(|literal| literal.target == here.add(2))
    }

    /// Where branches of the window lead.
    fn targets(&self) -> impl Iterator<Item = CodeAddr> {
        self.code.iter().filter_map(|inst| inst.flow().target())
    }

    fn literals(&self) -> impl Iterator<Item = Literal> {
        self.code.iter().filter_map(|inst| match inst.pc_use() {
            PcUse::Literal(literal) if literal.access > 0 => Some(literal),
            _ => None,
        })
    }
}
