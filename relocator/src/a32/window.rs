//! Where a window ends.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    a32::{INST_LEN, Inst, decode},
};

use super::{Insts, Item, MAX_WORDS, SIGHT, culprit_at, redirect::can_be_at};
use crate::{
    Error, Window, WindowOptions,
    window::{MAX_MIN_LEN, function_ends, next, padding},
};

pub(crate) fn window(
    from: CodeAddr,
    bytes: &[u8],
    min_len: usize,
    options: WindowOptions,
) -> Result<Window, Error> {
    can_be_at(from, MAX_MIN_LEN)?;
    let min_len = min_len.max(1).next_multiple_of(INST_LEN);
    let named = Named::by(from, bytes, min_len);
    let mut items = ArrayVec::<Item, MAX_WORDS>::new();
    let mut len = 0;
    while len < min_len {
        let at = from.add(len as u64);
        let rest = bytes.get(len..).unwrap_or_default();
        let ahead = |target: CodeAddr| target.offset_within(at, (min_len - len) as u64).is_some();
        let is_needed = |inst: &Inst| {
            inst.flow().target().is_some_and(ahead)
                || inst.literal().is_some_and(|literal| ahead(literal.target))
        };
        if let Some(last) = items.iter().rev().find_map(Item::code)
            && function_ends(last, len, options.extent, || {
                items.iter().filter_map(Item::code).any(is_needed)
            })?
        {
            let padded = padding(last, from, bytes, (len, min_len), options)?;
            return Ok(finish(from, bytes, (padded, len), items, options));
        }
        let item = match rest.first_chunk::<INST_LEN>() {
            Some(word) if follows_exit(&items) && named.contains(len) && !is_target(&items, at) => {
                Item::Data { at, word: u32::from_le_bytes(*word) }
            }
            _ => Item::Code(next(&[], at, rest)?),
        };
        len += INST_LEN;
        items.push(item);
    }
    if let (Some(last), Some(extent)) = (items.last(), options.extent)
        && len > extent
    {
        return Err(Error::BeyondExtent { culprit: culprit_at(last.at(), &last.bytes()), extent });
    }
    Ok(finish(from, bytes, (len, len), items, options))
}

fn finish(
    from: CodeAddr,
    bytes: &[u8],
    (len, code_len): (usize, usize),
    items: ArrayVec<Item, MAX_WORDS>,
    options: WindowOptions,
) -> Window {
    let end = options.extent.unwrap_or(bytes.len()).min(bytes.len());
    // From the last instruction on: padding is looked through, or all behind it would be taken for what stands before it.
    let (words, _) = bytes.get(code_len..end).unwrap_or_default().as_chunks::<INST_LEN>();
    let ahead = words.iter().take(SIGHT).map(|word| u32::from_le_bytes(*word)).collect();
    let insts = Insts { items, ahead, entry: options.entry };
    Window { from, len, code_len, insts: crate::window::Insts::A32(insts) }
}

/// The words among the window's that loads of constants in it name. A load that is none, but a constant that looks like
/// one, may name a word too many: that does no harm, for only what no branch leads to is taken for data.
struct Named(u16);

impl Named {
    fn by(from: CodeAddr, bytes: &[u8], min_len: usize) -> Self {
        let mut named = 0;
        for (number, word) in bytes.chunks_exact(INST_LEN).take(min_len / INST_LEN).enumerate() {
            // `pc` as the base, in any load with an immediate: a quick look before the whole decoding.
            if word[2] & 15 != 15 {
                continue;
            }
            let Ok(inst) = decode(from.add((number * INST_LEN) as u64), word) else { continue };
            let Some(literal) = inst.literal().filter(|literal| literal.access > 0) else { continue };
            let start = literal.target.displacement_from(from);
            let end = start + i64::from(literal.access);
            for at in (0..min_len).step_by(INST_LEN) {
                let overlaps = start < (at + INST_LEN) as i64 && end > at as i64;
                named |= u16::from(overlaps) << (at / INST_LEN);
            }
        }
        Self(named)
    }

    const fn contains(&self, offset: usize) -> bool {
        self.0 >> (offset / INST_LEN) & 1 == 1
    }
}

fn follows_exit(items: &[Item]) -> bool {
    match items.last() {
        Some(Item::Code(inst)) => inst.is_exit(),
        Some(Item::Data { .. }) => true,
        None => false,
    }
}

/// A branch before it leads there.
fn is_target(items: &[Item], at: CodeAddr) -> bool {
    items.iter().filter_map(Item::code).any(|inst| inst.flow().target() == Some(at))
}
