//! Branches into a patch from other functions.
//!
//! In A32 a patch is one instruction, which is entered at its start or not at all. In T32 it may lie over two: glibc's `stpcpy`
//! goes on at the second instruction of `strcpy`, which lies beside it.

use core::ops::Range;

use grapnel_arch::t32::{MAX_INST_LEN, decode, text};
use grapnel_relocator::{CodeAddr, Culprit, Isa};

use crate::{
    memory::maps::Maps,
    surroundings::{Inbound, Surroundings},
};

/// How far before and behind a patch is looked, in bytes: no conditional branch of 16 bits goes farther.
const FAR: usize = 256;

/// The shortest instruction.
const UNIT: usize = 2;

/// A branch that leads to a byte of the patch but the first, from code close by that isn't the function's at `own`.
///
/// Each halfword is taken for an instruction first. Only where that leads into the patch, the function around it is decoded, to see
/// whether an instruction begins there; one of which no symbol says where it begins isn't looked at.
pub(crate) fn branch_into(
    isa: Isa,
    patch: &Range<u64>,
    own: &Range<u64>,
    maps: &Maps,
    around: &Surroundings<'_>,
) -> Inbound {
    let found = (isa == Isa::T32).then(|| close_by(patch, own, maps, around)).flatten();
    found.map_or(Inbound::Nothing, Inbound::From)
}

fn close_by(patch: &Range<u64>, own: &Range<u64>, maps: &Maps, around: &Surroundings<'_>) -> Option<Culprit> {
    let (start, end) = (patch.start as usize, patch.end as usize);
    let inner = patch.start + 1..patch.end;
    let (from, bytes) = around.code_around(start, FAR, end - start + FAR);
    let halves = (from..from + bytes.len()).step_by(UNIT).filter(|at| !own.contains(&(*at as u64)));
    let leads_there = |at: &usize| {
        let here = at.checked_sub(from).and_then(|offset| bytes.get(offset..));
        let inst = here.and_then(|here| decode(CodeAddr(*at as u64), here).ok());
        inst.and_then(|inst| inst.flow().target()).is_some_and(|to| inner.contains(&to.0))
    };
    let is_code = |at: &usize| {
        let function = around.view.neighbour(maps, start, *at);
        function.is_some_and(|function| begins_at(*at, function, around))
    };
    let at = halves.filter(leads_there).find(is_code)?;
    let inst = decode(CodeAddr(at as u64), bytes.get(at - from..)?).ok()?;
    Some(Culprit {
        at: inst.addr(),
        bytes: inst.bytes().iter().copied().collect(),
        text: text(inst.addr(), inst.bytes()),
    })
}

/// Whether an instruction of a function begins there.
fn begins_at(at: usize, function: Range<usize>, around: &Surroundings<'_>) -> bool {
    let mut here = function.start;
    while here < at {
        let mut bytes = [0; MAX_INST_LEN];
        let len = around.read(here, &mut bytes);
        let inst = bytes.get(..len).and_then(|bytes| decode(CodeAddr(here as u64), bytes).ok());
        // Data, perhaps.
        here = inst.map_or(here + UNIT, |inst| inst.next().0 as usize);
    }
    here == at
}
