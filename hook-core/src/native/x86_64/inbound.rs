//! Branches into a patch from other functions.
//!
//! A compiler has no function branch into the middle of another one. Who writes assembly does: glibc's `mempcpy` sets its
//! result and goes on three bytes into `memmove`. Such functions stand close to each other, in one file. And a compiler puts
//! what a function seldom does far from it, as a function of its own for whoever looks (`f.cold`), and has that go on anywhere
//! in the first one: what the hooked function jumps to is looked at, too.

use alloc::{vec, vec::Vec};
use core::ops::Range;

use grapnel_arch::x86_64::{Flow, Inst, MAX_INST_LEN, decode, text};
use grapnel_relocator::{CodeAddr, Culprit, Isa};

use crate::{
    memory::maps::Maps,
    plan::EXTENT_MAX,
    surroundings::{Inbound, Surroundings},
};

/// How far before and behind a patch is looked, in bytes. Those of glibc lie within a hundred.
const FAR: usize = 256;

/// How many functions that the hooked one jumps to are looked at, and how much of all of them in bytes.
const PARTS: usize = 1024;
const PARTS_BYTES: usize = 1 << 20;

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

/// A branch that leads to a byte of the patch but the first, from code close by that isn't the function's at `own`, or from code
/// that this function jumps to.
///
/// Every byte is taken for an opcode first, which costs next to nothing. Only where that leads into the patch the function
/// around it is decoded, to see whether an instruction begins there. Functions of which nothing says where they begin, and those
/// of other objects, aren't looked at, and a branch that lies in the bytes that somebody else's patch has overwritten is seen by nobody.
pub(crate) fn branch_into(
    _: Isa,
    patch: &Range<u64>,
    own: &Range<u64>,
    maps: &Maps,
    around: &Surroundings<'_>,
) -> Inbound {
    let (start, end) = (patch.start as usize, patch.end as usize);
    let (from, bytes) = around.code_around(start, FAR, end - start + FAR);
    let inner = patch.start + 1..patch.end;
    let close =
        branches(from, &bytes, |to| inner.contains(&to)).filter(|(at, _)| !own.contains(&(*at as u64)));
    let close: Vec<_> = close.map(|(at, _)| at).collect();
    let beside = |at: usize| leads_into(at, &around.view.neighbour(maps, start, at)?, &inner, around);
    match close.into_iter().find_map(beside) {
        Some(culprit) => Inbound::From(culprit),
        None => from_afar(&inner, own, &(from..from + bytes.len()), maps, around),
    }
}

/// The same among what the function at `own` jumps to that isn't close by.
fn from_afar(
    inner: &Range<u64>,
    own: &Range<u64>,
    close: &Range<usize>,
    maps: &Maps,
    around: &Surroundings<'_>,
) -> Inbound {
    let len = (own.end.saturating_sub(own.start) as usize).min(EXTENT_MAX);
    let mut bytes = vec![0; len];
    let read = around.read(own.start as usize, &mut bytes);
    bytes.truncate(read);
    let is_far = |to: u64| !own.contains(&to) && !close.contains(&(to as usize));
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut left = PARTS_BYTES;
    // Calls come back to where they were made.
    let jumps = branches(own.start as usize, &bytes, is_far)
        .filter(|(at, _)| bytes.get(at - own.start as usize) != Some(&0xe8));
    for (_, to) in jumps {
        let to = to as usize;
        if parts.iter().any(|part| part.contains(&to)) {
            continue;
        }
        let Some(part) = maps
            .find(to)
            .filter(|at| at.execute)
            .and_then(|_| around.view.neighbour(maps, inner.start as usize, to))
        else {
            continue;
        };
        if parts.len() == PARTS || part.len() > left {
            return Inbound::MoreElsewhere;
        }
        let mut code = vec![0; part.len()];
        let read = around.read(part.start, &mut code);
        code.truncate(read);
        left -= read;
        let into = branches(part.start, &code, |to| inner.contains(&to));
        let mut found = into.filter(|(at, _)| !own.contains(&(*at as u64)));
        if let Some(culprit) = found.find_map(|(at, _)| leads_into(at, &part, inner, around)) {
            return Inbound::From(culprit);
        }
        parts.push(part);
    }
    Inbound::Nothing
}

/// What may be branches in these bytes, and where they lead, if that is `wanted`.
fn branches(from: usize, bytes: &[u8], wanted: impl Fn(u64) -> bool) -> impl Iterator<Item = (usize, u64)> {
    let opens = bytes.iter().enumerate().filter(|(_, byte)| OPENS[usize::from(**byte)]);
    opens.filter_map(move |(place, _)| {
        let at = from + place;
        let to = target(at as u64, bytes.get(place..)?)?;
        wanted(to).then_some((at, to))
    })
}

/// The instruction of a function that an address lies in, if it leads into the patch.
fn leads_into(
    at: usize,
    function: &Range<usize>,
    inner: &Range<u64>,
    around: &Surroundings<'_>,
) -> Option<Culprit> {
    let leads_there = |inst: &Inst| inst.flow().target().is_some_and(|to| inner.contains(&to.0));
    starts(function, around)
        .filter_map(|start| instruction_over(at, &(start..function.end), around))
        .find(leads_there)
        .map(|inst| culprit(&inst))
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
