//! What code did from the beginning of its function to an address: what it put on the stack is how its frame is laid out.
//!
//! Where a function begins isn't known: linkers make one entry of many functions without tables. It begins where the
//! return address was last stored, unless a function ended in between.

use super::code::Code;
use super::effect::{Effect, Instruction};
use super::layout::Layout;
use super::registers::{LR, PC, R7, R11, SP};
use super::rule::RuleKind;

/// So far back a function may begin.
const FARTHEST: u64 = 0x4000;
/// So many places are tried: what looks like an instruction may be data, or the second half of another.
const TRIED: usize = 8;
/// A branch that goes farther goes to another function.
const LONGEST_BRANCH: u64 = 0x2000;

/// The layout of the frame at `pc`, to which a call returns.
pub(super) fn layout(code: &Code, pc: u64) -> Option<Layout> {
    let start = code.start.next_multiple_of(4);
    if pc.checked_sub(start)? <= FARTHEST
        && let Some(layout) = from(code, start, pc)
    {
        return Some(layout);
    }
    let step = if code.is_t32 { 2 } else { 4 };
    let mut tried = 0;
    let mut at = pc;
    while at > start && pc - at <= FARTHEST && tried < TRIED {
        at -= step;
        if code.instruction(at).is_some_and(|instruction| stores_link(&instruction)) {
            if let Some(layout) = from(code, with_arguments(code, at, step), pc) {
                return Some(layout);
            }
            tried += 1;
        }
    }
    None
}

fn stores_link(instruction: &Instruction) -> bool {
    matches!(instruction.effect, Effect::Push { mask, .. } if mask & 1 << LR != 0) && !instruction.conditional
}

/// A function with arguments that vary stores those that came in registers first, a few instructions before lr.
fn with_arguments(code: &Code, at: u64, step: u64) -> u64 {
    let stores_arguments = |from: u64| match code.instruction(from).map(|instruction| instruction.effect) {
        Some(Effect::Push { mask, .. }) => mask != 0 && mask & !0xf == 0,
        Some(Effect::Move { to: SP, from: SP, add }) => (-16..0).contains(&add),
        _ => false,
    };
    let goes_straight = |from: u64| {
        let mut next = from;
        while next < at {
            match code.instruction(next) {
                Some(Instruction { effect: Effect::Other, len, .. }) => next += len,
                Some(Instruction { len, .. }) if next == from => next += len,
                _ => return false,
            }
        }
        next == at
    };
    let before = (1..=8).map(|steps| at.wrapping_sub(steps * step));
    before
        .filter(|from| *from >= code.start)
        .find(|from| stores_arguments(*from) && goes_straight(*from))
        .unwrap_or(at)
}

/// Follows the code from `start` to `pc` in a line. `None` where that is not all of one function.
fn from(code: &Code, start: u64, pc: u64) -> Option<Layout> {
    // From the CFA.
    let mut layout = Layout::new(RuleKind::Sp);
    let mut sp = Some(0i32);
    let mut frame_pointer = None;
    // The farthest that a branch has gone to.
    let mut reach = start;
    let mut conditional_for = 0u32;
    let mut at = start;
    while at < pc {
        let Instruction { effect, len, conditional } = code.instruction(at)?;
        let conditional = conditional || conditional_for > 0;
        conditional_for = conditional_for.saturating_sub(1);
        let next = at.wrapping_add(len);
        // What goes up is a way out, and the rest of the function isn't on it.
        let mut ends = false;
        match effect {
            Effect::Push { mask, size } => {
                if conditional || (mask & 1 << LR != 0 && layout.pc().is_some()) {
                    return None;
                }
                let lower = sp?.checked_sub(size)?;
                let earlier = layout.saved;
                layout.take(mask & !(1 << SP | 1 << PC), lower)?;
                for (saved, earlier) in layout.saved.iter_mut().zip(earlier) {
                    *saved = earlier.or(*saved);
                }
                sp = Some(lower);
            }
            Effect::StoreLink(offset) if layout.pc().is_none() => {
                layout.take(1 << LR, sp?.checked_add(offset)?)?;
            }
            Effect::Move { to: SP, from: SP, add } if add < 0 => {
                if conditional {
                    return None;
                }
                sp = match sp {
                    Some(sp) => Some(sp.checked_add(add)?),
                    None => None,
                };
            }
            Effect::Move { to: to @ (R7 | R11), from: SP, add } if frame_pointer.is_none() => {
                let kind = if to == R7 { RuleKind::R7 } else { RuleKind::R11 };
                frame_pointer = Some((kind, sp?.checked_add(add)?));
            }
            Effect::LosesSp => sp = None,
            Effect::If(count) => conditional_for = count,
            Effect::Branch(target) => {
                if target.checked_sub(at).is_some_and(|distance| distance <= LONGEST_BRANCH) {
                    reach = reach.max(target);
                }
                ends = !conditional;
            }
            Effect::Table => reach = u64::MAX,
            Effect::Pop { mask, .. } => ends = mask & 1 << PC != 0 && !conditional,
            Effect::Return | Effect::Leave | Effect::Trap => ends = !conditional,
            _ => {}
        }
        if ends && next > reach {
            return None;
        }
        at = next;
    }
    layout.pc().filter(|_| at == pc)?;
    let (kind, base) = match sp {
        Some(sp) => (RuleKind::Sp, sp),
        None => frame_pointer?,
    };
    layout.kind = kind;
    layout.cfa = base.checked_neg()?;
    for saved in layout.saved.iter_mut().flatten() {
        *saved = saved.checked_sub(base)?;
    }
    Some(layout)
}
