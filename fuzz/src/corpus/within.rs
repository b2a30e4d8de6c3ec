//! Where instructions begin in a function.

use std::collections::BTreeSet;

use exarmo_aarch32::{BranchKind, ItState, a32, t32};
use grapnel_arch::x86_64;
use grapnel_relocator::{CodeAddr, Isa};

use super::Function;

/// What a walk needs of an instruction.
struct Step {
    len: usize,
    target: Option<u64>,
    goes_on: bool,
    /// The conditions that the next instruction stands under, in T32.
    state: ItState,
}

/// The offsets of the instructions that are reached from the function's start by direct branches and by falling through,
/// ascending. So literals and tables in the code are left out, and what only indirect jumps lead to.
///
/// Members of an IT block are left out too: the bytes from there on don't say that they are one.
#[must_use]
pub fn boundaries(isa: Isa, function: &Function) -> Vec<usize> {
    let own = function.own();
    let mut seen = BTreeSet::new();
    let mut members = BTreeSet::new();
    let mut pending = vec![(0, ItState::Outside)];
    while let Some((mut at, mut state)) = pending.pop() {
        while at < own.len() && seen.insert(at) {
            if state != ItState::Outside {
                members.insert(at);
            }
            let Some(step) = step(isa, function.addr.add(at as u64), &own[at..], state) else {
                seen.remove(&at);
                break;
            };
            if let Some(target) = step.target
                && let Some(offset) = CodeAddr(target).offset_within(function.addr, own.len() as u64)
            {
                pending.push((offset as usize, ItState::Outside));
            }
            if !step.goes_on {
                break;
            }
            at += step.len;
            state = step.state;
        }
    }
    seen.into_iter().filter(|at| !members.contains(at)).collect()
}

fn step(isa: Isa, addr: CodeAddr, bytes: &[u8], state: ItState) -> Option<Step> {
    let state_after;
    let (len, branch) = match isa {
        Isa::X86_64 => {
            use x86_64::Flow;
            let inst = x86_64::decode(addr, bytes).ok()?;
            let goes_on = !matches!(
                inst.flow(),
                Flow::Jump { .. } | Flow::JumpIndirect | Flow::Return | Flow::Undefined | Flow::Breakpoint
            );
            let target = match inst.flow() {
                Flow::Call { .. } => None,
                flow => flow.target().map(|target| target.0),
            };
            return Some(Step { len: inst.bytes().len(), target, goes_on, state });
        }
        Isa::Aarch64 => {
            let inst = exarmo_aarch64::decode_bytes(bytes).ok()?;
            state_after = state;
            (4, inst.at(addr.0).branch())
        }
        Isa::A32 => {
            let inst = a32::decode_bytes(bytes).ok()?;
            state_after = state;
            (4, inst.at(addr.0).branch())
        }
        Isa::T32 => {
            let inst = t32::decode_bytes(bytes, state).ok()?;
            let first = u16::from_le_bytes([bytes[0], bytes[1]]);
            state_after = state.after(&inst);
            (usize::from(t32::length(first)), inst.at(addr.0).branch())
        }
    };
    let leaves = branch.kind.sets_the_pc() || branch.kind == BranchKind::Exception || loads_pc(isa, bytes);
    let calls = matches!(branch.kind, BranchKind::DirectCall | BranchKind::IndirectCall);
    Some(Step {
        len,
        target: branch.target.filter(|_| branch.kind == BranchKind::Direct).map(|target| target & !1),
        goes_on: !leaves
            || calls
            || branch.conditional
            || conditional(isa, bytes)
            || state != ItState::Outside,
        state: state_after,
    })
}

/// It loads the PC from memory: LDR, LDM and POP, which the decoder counts as loads.
fn loads_pc(isa: Isa, bytes: &[u8]) -> bool {
    match isa {
        Isa::A32 => {
            let word = bytes.first_chunk().map_or(0, |&word| u32::from_le_bytes(word));
            let load = word & 0x0c10_f000 == 0x0410_f000 && word & 0x0200_0010 != 0x0200_0010;
            word >> 28 != 15 && (load || word & 0x0e10_8000 == 0x0810_8000)
        }
        Isa::T32 => {
            let halfword = |at: usize| {
                bytes.get(at..at + 2).map_or(0, |half| u16::from(half[1]) << 8 | u16::from(half[0]))
            };
            let (first, second) = (halfword(0), halfword(2));
            first >> 8 == 0xbd
                || first & 0xff70 == 0xf850 && second >> 12 == 15
                || first & 0xfe50 == 0xe810 && second >> 15 == 1 && matches!(first >> 7 & 3, 1 | 2)
        }
        Isa::X86_64 | Isa::Aarch64 => false,
    }
}

/// In A32 every instruction may be under a condition.
fn conditional(isa: Isa, bytes: &[u8]) -> bool {
    isa == Isa::A32 && bytes[3] >> 4 < 14
}
