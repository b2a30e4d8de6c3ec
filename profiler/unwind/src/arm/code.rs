//! Code that no table tells of: C code has none unless its compiler is told to make them, and glibc has such in parts.
//!
//! Where its frame keeps the return address can be seen in the code: a function that calls others has to store it before,
//! and to take it back after. What comes after is asked first ([`way_out`]): that is what the processor will do, from an
//! address at which an instruction is known to begin. Some code never returns; then what came before is asked
//! ([`prologue`]). Either is a guess, and the address that it leads to has to [lie behind a call](is_return).
//!
//! # Safety
//! Slices of mapped code are made here; see [`memory`](crate::memory) for what that relies on.

use super::effect::Instruction;
use super::layout::Layout;
use super::table::Found;
use super::{a32, plain, prologue, signal, t32, way_out};
use crate::call::bytes_before;
use crate::memory::{Slice, mapped_slice};
use crate::module::ModuleTable;
use crate::probe::page_is_readable;
use crate::stack::StackMemory;

/// The code of one instruction set from an address on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code {
    pub(super) start: u64,
    bytes: Slice,
    pub(super) is_t32: bool,
}

impl Code {
    /// What was found for `pc`, whose bit 0 says that it is T32 code.
    pub(super) fn around(pc: u64, found: &Found<'_>) -> Option<Self> {
        let span = found.code?;
        // SAFETY: the span lies in one mapped segment.
        let bytes = unsafe { mapped_slice(span.start, span.end) };
        Some(Code { start: span.start, bytes, is_t32: pc != plain(pc) })
    }

    /// The instruction at an address; `None` where there is no code, and none can begin.
    pub(super) fn instruction(&self, at: u64) -> Option<Instruction> {
        if self.is_t32 {
            let first = u16::from_le_bytes(self.read(at)?);
            t32::decode(first, at, || self.read(at.wrapping_add(2)).map(u16::from_le_bytes))
        } else {
            self.read(at).map(|word| a32::decode(u32::from_le_bytes(word), at))
        }
    }

    /// Whether what lies at an address, or behind one halfword that fills up, is a constant that code before it loads.
    pub(super) fn is_constant(&self, at: u64) -> bool {
        let aligned = at.next_multiple_of(4);
        let first = aligned.saturating_sub(4096).max(self.start).next_multiple_of(4);
        if self.is_t32 {
            let half = |at: u64| self.read(at).map(u16::from_le_bytes);
            let fills_up = matches!(half(at), Some(0 | 0xbf00));
            return (at == aligned || fills_up)
                && (first..at).step_by(2).any(|from| {
                    let halves = half(from).zip(half(from + 2));
                    let offset = halves.and_then(|(first, second)| t32::constant(first, second));
                    offset.is_some_and(|offset| (from & !3) + 4 + offset == aligned)
                });
        }
        (first..at).step_by(4).any(|from| {
            let offset = self.read(from).and_then(|word| a32::constant(u32::from_le_bytes(word)));
            offset.is_some_and(|offset| from + 8 + offset == at)
        })
    }

    /// The halfword or word at an address.
    fn read<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let offset = at.checked_sub(self.start)?;
        let bytes = self.bytes.slice().get(usize::try_from(offset).ok()?..)?;
        bytes.first_chunk().copied().filter(|_| at.is_multiple_of(N as u64))
    }
}

/// How the frame at `pc` is laid out, by its code.
pub(super) fn layout(pc: u64, is_return_address: bool, found: &Found<'_>) -> Option<Layout> {
    let code = Code::around(pc, found)?;
    if !is_return_address {
        return way_out::layout(&code, plain(pc), is_return_address)
            .or_else(|| prologue::layout(&code, plain(pc)));
    }
    // One that no rule can say is none: a walk may go by rules or by full steps.
    let can_be_said = |layout: &Layout| layout.rule().is_some();
    way_out::layout(&code, plain(pc), is_return_address)
        .filter(can_be_said)
        .or_else(|| prologue::layout(&code, plain(pc)).filter(can_be_said))
}

/// Whether code can be at `pc`, which is in the code of no module. A JIT compiler's may be anywhere. In a module's data it is rare, and what points
/// there most often points at data.
///
/// Off the hot path: asks the kernel.
pub(super) fn is_elsewhere(table: &ModuleTable, pc: u64, is_return_address: bool) -> bool {
    let address = plain(pc).wrapping_sub(u64::from(is_return_address));
    let is_data = is_return_address && table.module_at(address).is_some() && !is_behind_call(pc);
    !is_data && page_is_readable(address)
}

/// Whether a call lies before `pc`, where that is read with a question.
pub(super) fn is_behind_call(pc: u64) -> bool {
    let address = plain(pc);
    let [a, b, c, d, e, f, g, h] = bytes_before(address);
    if pc != address {
        return t32::is_call(u16::from_le_bytes([e, f]), u16::from_le_bytes([g, h]));
    }
    address.is_multiple_of(4)
        && a32::is_call(u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

/// Whether a call returns to `pc`, or a signal's handler does.
pub(super) fn is_return(pc: u64, stack: &mut StackMemory) -> bool {
    let address = plain(pc);
    let mut read = |below| stack.read(address.wrapping_sub(below)).map(|word| word as u32);
    let is_call = if pc != address {
        read(4).is_some_and(|two| t32::is_call(two as u16, (two >> 16) as u16))
    } else {
        read(8).zip(read(4)).is_some_and(|(last_but_one, last)| a32::is_call(last_but_one, last))
    };
    is_call || signal::is_trampoline(pc)
}
