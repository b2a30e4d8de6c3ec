//! Unwind entries, as DWARF 5 (6.4) and the Linux Standard Base (10.6) define `.eh_frame`.
//!
//! An entry says that its code was called by the instruction that it stands for, in the hooked function, and that nothing
//! else lies between the two. So an unwinder goes on with the function's own entry at that instruction, and with its own
//! exception tables: nothing of these has to be known here. To look an address up, unwinders take one from it, as the
//! instruction in front of a return address is the call. The address of the caller is therefore a little above that of the
//! instruction ([`Layout::behind`]), which is right also where the instruction is the function's first.
//!
//! libgcc knows a frame by its callee's canonical frame address (CFA), and aborts if two with the one that handles the
//! exception have the same. For unwinders the CFA of these entries is therefore one byte above the function's stack pointer. For
//! GDB it is that: a function's own CFA may be so at its first instruction, and who has a lower one is no caller.
//!
//! gimli can write such tables, but not without std.

use alloc::vec::Vec;

use super::piece::{Piece, Stack};
use crate::native::Layout;

const CFA_ADVANCE_LOC4: u8 = 0x04;
const CFA_OFFSET_EXTENDED: u8 = 0x05;
const CFA_SAME_VALUE: u8 = 0x08;
const CFA_DEF_CFA: u8 = 0x0c;
const CFA_DEF_CFA_OFFSET: u8 = 0x0e;
const CFA_VAL_EXPRESSION: u8 = 0x16;
const OP_ADDR: u8 = 0x03;
const OP_LIT0: u8 = 0x30;
const OP_MINUS: u8 = 0x1c;

/// Who reads a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Debugger,
    Unwinder,
}

impl Reader {
    /// How far the CFA is above the function's stack pointer.
    fn above(self) -> u8 {
        match self {
            Self::Debugger => 0,
            Self::Unwinder => 1,
        }
    }
}

/// A section with an entry for each of the pieces, and the zero at its end.
pub(crate) fn section(pieces: &[Piece], layout: Layout, reader: Reader) -> Vec<u8> {
    let above = reader.above();
    let mut out = Vec::new();
    entry(&mut out, |out| {
        // An identity of 0, version 1, addresses in full, the factors 1 and -1, and no augmentation but that.
        out.extend_from_slice(&[0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x7f, layout.return_address, 1, 0]);
        out.extend_from_slice(&[CFA_DEF_CFA, layout.stack_pointer, above]);
        out.extend_from_slice(&[CFA_VAL_EXPRESSION, layout.stack_pointer, 2, OP_LIT0 + above, OP_MINUS]);
    });
    for piece in pieces {
        let common = out.len() as u32 + 4;
        entry(&mut out, |out| {
            out.extend_from_slice(&common.to_le_bytes());
            out.extend_from_slice(&piece.slot.at.to_le_bytes());
            out.extend_from_slice(&piece.slot.len.to_le_bytes());
            out.push(0);
            rules(out, piece, layout, u32::from(above));
        });
    }
    out.extend_from_slice(&[0; 4]);
    out
}

/// The entries of a section that [`section`] made, each with the common one ahead of it that it refers to.
pub(crate) fn entries(section: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut at = 0;
    core::iter::from_fn(move || {
        let len = u32::from_le_bytes(*section.get(at..)?.first_chunk()?) as usize;
        let this = at;
        at += 4 + len;
        (len != 0).then_some(this)
    })
    .skip(1)
}

fn rules(out: &mut Vec<u8>, piece: &Piece, layout: Layout, above: u32) {
    let mut last = Stack::default();
    let mut at = 0;
    for frame in &piece.frames {
        if frame.offset > at {
            out.push(CFA_ADVANCE_LOC4);
            out.extend_from_slice(&((frame.offset - at) as u32).to_le_bytes());
            at = frame.offset;
        }
        let address = (frame.of.0 + layout.behind) as usize;
        let len = 1 + size_of_val(&address) as u8;
        out.extend_from_slice(&[CFA_VAL_EXPRESSION, layout.return_address, len, OP_ADDR]);
        out.extend_from_slice(&address.to_le_bytes());
        if frame.stack.below != last.below {
            out.push(CFA_DEF_CFA_OFFSET);
            uleb(out, frame.stack.below + above);
        }
        for (kept, was) in frame.stack.kept.into_iter().zip(last.kept).filter(|(kept, was)| kept != was) {
            match (kept, was) {
                (Some((register, below)), _) => {
                    out.extend_from_slice(&[CFA_OFFSET_EXTENDED, register]);
                    uleb(out, below + above);
                }
                (None, Some((register, _))) => out.extend_from_slice(&[CFA_SAME_VALUE, register]),
                (None, None) => {}
            }
        }
        last = frame.stack;
    }
}

/// An entry, with its length ahead of it, filled up with `DW_CFA_nop`.
fn entry(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    while !(out.len() - start).is_multiple_of(8) {
        out.push(0);
    }
    let len = (out.len() - start - 4) as u32;
    if let Some(field) = out.get_mut(start..start + 4) {
        field.copy_from_slice(&len.to_le_bytes());
    }
}

fn uleb(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
