//! From a frame to its caller by a fast rule. The inner loop of a walk.

use super::call::returns_to;
use super::rule::{FrameRegister, PackedRule, RuleKind};
use crate::frame_pointer::{FramePointer, LARGEST_GUESSED_FRAME, read};
use crate::memo::Words;
use crate::stack::{StackMemory, is_far};
use crate::start::Cursor;

const WORD: u64 = 8;

/// The pc and the sp of the caller's frame, by a rule of kind `Sp`, `Bp` or `BpDeref`; `None` where it can't be found
/// and for other kinds. A caller at pc 0 is the end of the stack.
///
/// `fp` becomes that of the caller. Unless the rule ignores it, it must have been [settled](FramePointer::settle).
/// Each word that is read goes to `words`; with the one of `settle` there are at most three. A result other than
/// `None` is a function of the rule, the frame and these words.
#[inline(always)]
pub(crate) fn step(
    rule: PackedRule,
    sp: u64,
    fp: &mut FramePointer,
    stack: &mut StackMemory,
    words: &mut Words,
) -> Option<(u64, u64)> {
    let cfa = if rule.is(RuleKind::Sp) {
        sp.wrapping_add(rule.cfa_offset())
    } else if rule.is(RuleKind::Bp) {
        fp.value().wrapping_add(rule.cfa_offset())
    } else if rule.is(RuleKind::BpDeref) {
        read(fp.value().wrapping_add(rule.cfa_offset()), stack, words)?
    } else {
        return None;
    };
    if is_far(sp, cfa) && !stack.goes_far(sp, cfa, rule.is(RuleKind::Sp)) {
        return None;
    }
    let pc = read(cfa.wrapping_sub(WORD), stack, words)?;
    if rule.finds_bp(FrameRegister::AtCfa) {
        // Not 0: the word before the CFA was read, and the offset has 16 bits. Linux maps nothing that low.
        fp.is_at(cfa.wrapping_add(rule.bp_offset()));
    } else if rule.finds_bp(FrameRegister::AtBp) {
        *fp = FramePointer::known(read(fp.value().wrapping_add(rule.bp_offset()), stack, words)?);
    }
    Some((pc, cfa))
}

/// Whether a return address that no module's code holds is no frame: it points at the stack, and no call lies before it.
#[cold]
#[inline(never)]
pub(crate) fn is_data(at: Cursor, stack: &StackMemory) -> bool {
    stack.has_passed(at) && !returns_to(at.pc)
}

/// The caller's frame, by a rule that is a guess, of which there is one kind.
#[inline(always)]
pub(crate) fn step_by_guess(
    _: PackedRule,
    at: Cursor,
    stack: &mut StackMemory,
    words: &mut Words,
) -> Option<Cursor> {
    step_by_frame_pointer(at, stack, words)
}

/// The caller's frame, by a frame pointer that nothing vouches for: `push rbp; mov rbp, rsp` is assumed, and checked.
///
/// A frame pointer of 0 is the end of the stack, told as a caller at pc 0.
#[cold]
#[inline(never)]
pub(super) fn step_by_frame_pointer(
    at: Cursor,
    stack: &mut StackMemory,
    words: &mut Words,
) -> Option<Cursor> {
    let fp = at.fp;
    if fp == 0 {
        return Some(Cursor { pc: 0, ..at });
    }
    stack.guess();
    let distance = fp.checked_sub(at.sp)?;
    if !fp.is_multiple_of(WORD) || distance > LARGEST_GUESSED_FRAME {
        return None;
    }
    let caller_fp = read(fp, stack, words)?;
    let pc = read(fp.wrapping_add(WORD), stack, words)?;
    Some(Cursor { pc, sp: fp.wrapping_add(2 * WORD), fp: caller_fp })
}
