//! Where a window ends.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    aarch64::{INST_LEN, Inst, PcOperand},
};

use super::{MAX_WORDS, culprit, liveness::Ahead};
use crate::{
    Error, Window, WindowOptions,
    window::{self, function_ends, next, padding},
};

/// The words of a window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Insts {
    pub(super) code: ArrayVec<Inst, MAX_WORDS>,
    /// Constants that stand behind an exit and that a load of the window reads.
    pub(super) data: ArrayVec<(CodeAddr, u32), MAX_WORDS>,
    /// The code from the window's start on, to find registers in that hold nothing.
    pub(super) ahead: Ahead,
}

impl Insts {
    /// The bytes of an operand that lies in the window's constants from one end to the other.
    pub(super) fn constant(&self, operand: PcOperand) -> Option<ArrayVec<u8, 16>> {
        let words = (0..operand.access().div_ceil(INST_LEN)).map(|number| {
            let at = operand.target.add((number * INST_LEN) as u64);
            self.data.iter().find(|&&(place, _)| place == at).map(|&(_, word)| word.to_le_bytes())
        });
        let words: Option<ArrayVec<[u8; INST_LEN], 4>> = words.collect();
        words.filter(|words| !words.is_empty()).map(|words| words.into_iter().flatten().collect())
    }
}

pub(crate) fn window(
    from: CodeAddr,
    bytes: &[u8],
    min_len: usize,
    options: WindowOptions,
) -> Result<Window, Error> {
    let min_len = min_len.max(1).next_multiple_of(INST_LEN);
    if !from.0.is_multiple_of(INST_LEN as u64) {
        return Err(Error::Misaligned { at: from, align: INST_LEN as u64 });
    }
    let mut code = ArrayVec::<Inst, MAX_WORDS>::new();
    let mut data = ArrayVec::new();
    let (mut len, mut code_len) = (0, 0);
    while len < min_len {
        let at = from.add(len as u64);
        if let Some(last) = code.last() {
            // Behind an exit nothing is executed in a row.
            if last.flow().is_exit()
                && let Some(word) = word_at(bytes, len)
                && is_constant(&code, at)
            {
                data.push((at, word));
                len += INST_LEN;
                continue;
            }
            let is_needed = |inst: &Inst| {
                let target = inst.flow().target();
                target.is_some_and(|target| target.offset_within(at, (min_len - len) as u64).is_some())
            };
            // Constants may lie behind the extent, as a pool does behind the code that an FDE describes.
            let reached = options.extent.map_or(len, |extent| len.min(extent.max(code_len)));
            if function_ends(last, reached, options.extent, || code.iter().any(is_needed))? {
                len = padding(last, from, bytes, (len, min_len), options)?;
                break;
            }
        }
        let inst = next(&code, at, bytes.get(len..).unwrap_or_default())?;
        len += INST_LEN;
        code_len = len;
        code.push(inst);
    }
    if let (Some(last), Some(extent)) = (code.last(), options.extent)
        && code_len > extent
    {
        return Err(Error::BeyondExtent { culprit: culprit(last), extent });
    }
    let ahead = Ahead::new(bytes, options);
    Ok(Window { from, len, code_len, insts: window::Insts::Aarch64(Insts { code, data, ahead }) })
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// A load of the window reads the word at `at`.
fn is_constant(code: &[Inst], at: CodeAddr) -> bool {
    let reads = |operand: PcOperand| at.offset_within(operand.target, operand.access() as u64).is_some();
    code.iter().any(|inst| inst.operand().is_some_and(reads))
}
