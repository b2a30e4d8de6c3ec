//! From a frame to its caller by a fast rule. The inner loop of a walk.

use super::code::{is_behind_call, is_return};
use super::frame_pointers::{FramePointer, read};
use super::plain;
use super::rule::{PackedRule, RuleKind};
use crate::frame_pointer::LARGEST_GUESSED_FRAME;
use crate::memo::Words;
use crate::stack::{StackMemory, is_far};
use crate::start::Cursor;

const WORD: u64 = 4;

/// The pc and the sp of the caller's frame, by a rule of kind `Sp`, `R7` or `R11`; `None` where it can't be found and
/// for other kinds. A caller at pc 0 is the end of the stack.
///
/// `fp` becomes that of the caller. Each word that is read goes to `words`; there are at most three. A result other
/// than `None` is a function of the rule, the frame and these words.
#[inline(always)]
pub(crate) fn step(
    rule: PackedRule,
    sp: u64,
    fp: &mut FramePointer,
    stack: &mut StackMemory,
    words: &mut Words,
) -> Option<(u64, u64)> {
    let base = if rule.is(RuleKind::Sp) {
        sp
    } else if rule.is(RuleKind::R7) {
        fp.r7()
    } else if rule.is(RuleKind::R11) {
        fp.r11()
    } else {
        return None;
    };
    let cfa = base.wrapping_add(rule.cfa_offset());
    if is_far(sp, cfa) && !stack.goes_far(sp, cfa, rule.is(RuleKind::Sp)) {
        return None;
    }
    let pc = read(cfa.wrapping_sub(rule.pc()), stack, words)?;
    if rule.r7() != 0 {
        fp.set_r7(read(cfa.wrapping_sub(rule.r7()), stack, words)?);
    }
    if rule.r11() != 0 {
        fp.set_r11(read(cfa.wrapping_sub(rule.r11()), stack, words)?);
    }
    Some((if plain(pc) == 0 { 0 } else { pc }, cfa))
}

/// Whether a return address that no module's code holds is no frame: it points at the stack, and no call lies before it.
#[cold]
#[inline(never)]
pub(crate) fn is_data(at: Cursor, stack: &StackMemory) -> bool {
    stack.has_passed(Cursor { pc: plain(at.pc), ..at }) && !is_behind_call(at.pc)
}

/// The caller's frame, by a rule that is a guess. What code says is checked: a call must return to the address that was found.
#[cold]
#[inline(never)]
pub(crate) fn step_by_guess(
    rule: PackedRule,
    at: Cursor,
    stack: &mut StackMemory,
    words: &mut Words,
) -> Option<Cursor> {
    let Some(rule) = rule.trusted() else { return step_by_frame_pointer(at, stack, words) };
    stack.guess();
    let mut fp = FramePointer::known(at.fp);
    let (pc, sp) = step(rule, at.sp, &mut fp, stack, words)?;
    (pc == 0 || is_return(pc, stack)).then_some(Cursor { pc, sp, fp: fp.value() })
}

/// The caller's frame, by a frame pointer that nothing vouches for: r7 in T32 code, r11 in A32 code.
///
/// That it points at a frame record (AAPCS32, section 6.4.3), the caller's frame pointer with the return address above
/// it, is assumed, and checked. gcc's A32 code has r11 point at the return address, which lies above the caller's r11; which of
/// the two it is shows in the word there, since a caller's frame pointer lies above its callee's.
///
/// A frame pointer of 0 is the end of the stack, told as a caller at pc 0.
#[cold]
#[inline(never)]
pub(crate) fn step_by_frame_pointer(
    at: Cursor,
    stack: &mut StackMemory,
    words: &mut Words,
) -> Option<Cursor> {
    let mut registers = FramePointer::known(at.fp);
    let is_t32 = at.pc != plain(at.pc);
    let fp = if is_t32 { registers.r7() } else { registers.r11() };
    if fp == 0 {
        return Some(Cursor { pc: 0, ..at });
    }
    stack.guess();
    let distance = fp.checked_sub(at.sp)?;
    if !fp.is_multiple_of(WORD) || distance > LARGEST_GUESSED_FRAME {
        return None;
    }
    let first = read(fp, stack, words)?;
    // Nothing is mapped at the lowest addresses: 0 is a frame pointer, and no return address.
    let is_record = first == 0 || first.checked_sub(fp).is_some_and(|up| up <= LARGEST_GUESSED_FRAME);
    let (caller_fp, pc, sp) = if is_record || is_t32 {
        let above = fp.wrapping_add(WORD);
        (first, read(above, stack, words)?, above.wrapping_add(WORD))
    } else {
        (read(fp.wrapping_sub(WORD), stack, words)?, first, fp.wrapping_add(WORD))
    };
    if is_t32 {
        registers.set_r7(caller_fp);
    } else {
        registers.set_r11(caller_fp);
    }
    Some(Cursor { pc: if plain(pc) == 0 { 0 } else { pc }, sp, fp: registers.value() })
}
