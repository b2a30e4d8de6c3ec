//! Where a window ends.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    x86_64::{DecodeError, Flow, Inst, decode},
};

use super::{CODE_KEPT, culprit, culprit_at};
use crate::{
    Error, Window, WindowOptions,
    window::{Insts, MAX_INSTS},
};

/// Compilers and linkers align functions to 16 bytes: padding can't be told from a function's own `nop`s beyond that.
const FUNCTION_ALIGNMENT: u64 = 16;

pub(crate) fn window(
    from: CodeAddr,
    bytes: &[u8],
    min_len: usize,
    options: WindowOptions,
) -> Result<Window, Error> {
    let min_len = min_len.max(1);
    let mut insts = ArrayVec::<Inst, MAX_INSTS>::new();
    let mut len = 0;
    while len < min_len {
        if let Some(last) = insts.last()
            && function_ends(&insts, last, from.add(len as u64), (len, min_len), options)?
        {
            let padded = padding(last, from, bytes, len, min_len, options)?;
            return Ok(Window { from, len: padded, code_len: len, insts: insts_of(insts, bytes, options) });
        }
        let inst = decode_at(from.add(len as u64), &bytes[len.min(bytes.len())..])?;
        if inst.flow() == Flow::Breakpoint {
            return Err(Error::Breakpoint { culprit: culprit(&inst) });
        }
        len += inst.bytes().len();
        insts.push(inst);
    }
    if let (Some(last), Some(extent)) = (insts.last(), options.extent)
        && len > extent
    {
        return Err(Error::BeyondExtent { culprit: culprit(last), extent });
    }
    Ok(Window { from, len, code_len: len, insts: insts_of(insts, bytes, options) })
}

fn insts_of(list: ArrayVec<Inst, MAX_INSTS>, bytes: &[u8], options: WindowOptions) -> Insts {
    let code = bytes.iter().copied().take(CODE_KEPT).collect();
    Insts::X86_64(super::Insts { list, code, entry: options.entry })
}

fn decode_at(at: CodeAddr, bytes: &[u8]) -> Result<Inst, Error> {
    decode(at, bytes).map_err(|error| match error {
        DecodeError::Truncated => Error::Truncated { at },
        _ => Error::Undefined { culprit: culprit_at(at, bytes) },
    })
}

/// Nothing of the function lies at `next`, right behind `last`.
///
/// With an extent that is a matter of its length. Without one, what lies behind an exit belongs to the function only
/// if a branch of the window leads there, or further on in what the window still needs.
fn function_ends(
    insts: &[Inst],
    last: &Inst,
    next: CodeAddr,
    (len, min_len): (usize, usize),
    options: WindowOptions,
) -> Result<bool, Error> {
    match options.extent {
        Some(extent) if len < extent => Ok(false),
        Some(extent) if len > extent || !last.flow().is_exit() => {
            Err(Error::BeyondExtent { culprit: culprit(last), extent })
        }
        Some(_) => Ok(true),
        None => {
            let missing = (min_len - len) as u64;
            let ahead = |target: CodeAddr| target.offset_within(next, missing).is_some();
            Ok(last.flow().is_exit() && !insts.iter().any(|inst| inst.flow().target().is_some_and(ahead)))
        }
    }
}

/// The length of the window with the padding that it needs to be `min_len` long: whole instructions of it, or as
/// many bytes of the last as are needed, for nothing executes them.
fn padding(
    last: &Inst,
    from: CodeAddr,
    bytes: &[u8],
    len: usize,
    min_len: usize,
    options: WindowOptions,
) -> Result<usize, Error> {
    let ends_early = || Error::EndsEarly { culprit: culprit(last), short_by: min_len - len };
    let end = from.add(len as u64).0.next_multiple_of(FUNCTION_ALIGNMENT);
    let room = CodeAddr(end).displacement_from(from) as usize;
    if !options.allow_padding || min_len > room {
        return Err(ends_early());
    }
    let mut padded = len;
    while padded < min_len {
        let inst = decode(from.add(padded as u64), bytes.get(padded..).unwrap_or_default())
            .map_err(|_| ends_early())?;
        if !inst.is_padding() {
            return Err(ends_early());
        }
        padded += inst.bytes().len();
    }
    // A `nop` that crosses the boundary is no padding of this function alone.
    if padded > room { Err(ends_early()) } else { Ok(min_len) }
}
