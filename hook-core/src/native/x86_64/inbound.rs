//! Branches into a patch from other functions.
//!
//! A compiler has no function branch into the middle of another one. Who writes assembly does: glibc's `mempcpy` sets its
//! result and goes on three bytes into `memmove`. Such functions stand close to each other, in one file.

use alloc::{vec, vec::Vec};
use core::ops::Range;

use grapnel_arch::x86_64::{Flow, Inst, MAX_INST_LEN, decode, text};
use grapnel_relocator::{CodeAddr, Culprit};

use crate::{memory::maps::Maps, padding::Surroundings, sys::PAGE};

/// How far before and behind a patch is looked, in bytes. Those of glibc lie within a hundred.
const FAR: usize = 256;

/// The longest patch of others: a landing pad and a jump to an address that it holds, or that is pushed for a return.
const PATCH: usize = 20;

/// The bytes that a branch may begin with: those of [`target`].
static OPENS: [bool; 256] = {
    let mut opens = [false; 256];
    let mut byte = 0;
    while byte < opens.len() {
        opens[byte] = matches!(byte, 0x0f | 0x70..=0x7f | 0xe0..=0xe3 | 0xe8 | 0xe9 | 0xeb);
        byte += 1;
    }
    opens
};

/// A branch close by that leads to a byte of the patch but the first, from a function other than the one at `own`.
///
/// Every byte is taken for an opcode first, which costs next to nothing. Only where that leads into the patch the function
/// around it is decoded, to see whether an instruction begins there. Functions without an unwind entry aren't looked at, and
/// a branch that lies in the bytes that somebody else's patch has overwritten is seen by nobody.
pub(crate) fn branch_into(
    patch: &Range<u64>,
    own: &Range<u64>,
    maps: &Maps,
    around: &Surroundings<'_>,
) -> Option<Culprit> {
    let (start, end) = (usize::try_from(patch.start).ok()?, usize::try_from(patch.end).ok()?);
    let mut bytes = vec![0; end - start + 2 * FAR];
    let mut from = start.saturating_sub(FAR);
    let mut len = around.read(from, &mut bytes);
    if len == 0 {
        // The page before isn't there.
        from = start & !(PAGE - 1);
        len = around.read(from, &mut bytes);
    }
    bytes.truncate(len);
    let inner = patch.start + 1..patch.end;
    // A loop of its own, as most bytes are none that a branch begins with.
    let mut places = Vec::new();
    for (place, &byte) in bytes.iter().enumerate() {
        if OPENS[usize::from(byte)] {
            let at = (from + place) as u64;
            let leads_in =
                target(at, bytes.get(place..).unwrap_or(&[])).is_some_and(|to| inner.contains(&to));
            if leads_in && !own.contains(&at) {
                places.push(from + place);
            }
        }
    }
    places.into_iter().find_map(|at| {
        let function = around.view.extent(maps, at)?;
        let leads_there = |inst: &Inst| inst.flow().target().is_some_and(|to| inner.contains(&to.0));
        starts(&function, around)
            .filter_map(|start| instruction_over(at, &(start..function.end), around))
            .find(leads_there)
            .map(|inst| culprit(&inst))
    })
}

/// Where a function's instructions are decoded from: its start, and where somebody has patched that, each place behind the
/// patch at which an instruction of the function may begin.
fn starts(function: &Range<usize>, around: &Surroundings<'_>) -> impl Iterator<Item = usize> {
    let mut here = function.start;
    let mut behind = 0..0;
    while here < function.start + PATCH {
        let Some(inst) = instruction_over(here, &(here..function.end), around) else { break };
        let next = inst.next().0 as usize;
        let leaves = match inst.flow() {
            Flow::Next => {
                here = next;
                continue;
            }
            Flow::Jump { target } => !function.contains(&(target.0 as usize)),
            Flow::JumpIndirect | Flow::Return | Flow::Breakpoint => true,
            // No patch decides anything: a short function does that returns.
            _ => false,
        };
        if leaves {
            behind = next..next + MAX_INST_LEN;
        }
        break;
    }
    core::iter::once(function.start).chain(behind)
}

/// Where a direct branch leads that has its opcode here, whatever prefixes it has.
#[inline]
fn target(at: u64, bytes: &[u8]) -> Option<u64> {
    let near = |from: usize| {
        let displacement = bytes.get(from..from + 4)?.try_into().ok().map(i32::from_le_bytes)?;
        Some(at.wrapping_add(from as u64 + 4).wrapping_add_signed(displacement.into()))
    };
    match *bytes {
        [0x70..=0x7f | 0xe0..=0xe3 | 0xeb, to, ..] => {
            Some(at.wrapping_add(2).wrapping_add_signed(to.cast_signed().into()))
        }
        [0xe8 | 0xe9, ..] => near(1),
        [0x0f, 0x80..=0x8f, ..] => near(2),
        _ => None,
    }
}

/// The instruction of a function that an address lies in.
fn instruction_over(at: usize, function: &Range<usize>, around: &Surroundings<'_>) -> Option<Inst> {
    let mut here = function.start;
    while here <= at {
        let mut bytes = [0; MAX_INST_LEN];
        let len = around.read(here, &mut bytes).min(function.end.checked_sub(here)?);
        match decode(CodeAddr(here as u64), bytes.get(..len)?) {
            Ok(inst) if at < inst.next().0 as usize => return Some(inst),
            Ok(inst) => here = inst.next().0 as usize,
            // Data, perhaps.
            Err(_) => here += 1,
        }
    }
    None
}

fn culprit(inst: &Inst) -> Culprit {
    Culprit {
        at: inst.addr(),
        bytes: inst.bytes().iter().copied().collect(),
        text: text(inst.addr(), inst.bytes()),
    }
}
