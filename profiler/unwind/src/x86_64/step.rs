//! From a frame to its caller by a fast rule. The inner loop of a walk.

use super::registers::Cursor;
use super::rule::{FrameRegister, RuleKind, UnwindRule};
use crate::memo::Words;
use crate::stack::StackMemory;

const WORD: u64 = 8;
/// A guess that would make a frame larger than this is not believed.
const LARGEST_GUESSED_FRAME: u64 = 1 << 20;

/// The caller's frame, by a rule of kind `Sp`, `Bp` or `BpDeref`; `None` where it can't be found and for other kinds.
/// A caller at pc 0 is the end of the stack.
///
/// Each word that is read goes to `words`; there are at most three. A result other than `None` is a function of the
/// rule, the cursor and these words.
#[inline(always)]
pub(crate) fn step(
    rule: UnwindRule,
    at: Cursor,
    stack: &mut StackMemory,
    words: &mut Words,
) -> Option<Cursor> {
    let offset = i64::from(rule.cfa_offset) as u64;
    let cfa = match rule.kind {
        RuleKind::Sp => at.sp.wrapping_add(offset),
        RuleKind::Bp => at.fp.wrapping_add(offset),
        RuleKind::BpDeref => read(at.fp.wrapping_add(offset), stack, words)?,
        _ => return None,
    };
    if cfa <= at.sp {
        return None;
    }
    let pc = read(cfa.wrapping_sub(WORD), stack, words)?;
    let saved = i64::from(rule.bp_offset) as u64;
    let fp = match rule.bp {
        FrameRegister::Same => at.fp,
        FrameRegister::AtCfa => read(cfa.wrapping_add(saved), stack, words)?,
        FrameRegister::AtBp => read(at.fp.wrapping_add(saved), stack, words)?,
    };
    Some(Cursor { pc, sp: cfa, fp })
}

/// The caller's frame, by a frame pointer that nothing vouches for: `push rbp; mov rbp, rsp` is assumed, and checked.
///
/// A frame pointer of 0 is the end of the stack, told as a caller at pc 0.
#[cold]
#[inline(never)]
pub(crate) fn step_by_frame_pointer(
    at: Cursor,
    stack: &mut StackMemory,
    words: &mut Words,
) -> Option<Cursor> {
    let fp = at.fp;
    if fp == 0 {
        return Some(Cursor { pc: 0, ..at });
    }
    stack.distrust();
    let distance = fp.checked_sub(at.sp)?;
    if !fp.is_multiple_of(WORD) || distance > LARGEST_GUESSED_FRAME {
        return None;
    }
    let caller_fp = read(fp, stack, words)?;
    let pc = read(fp.wrapping_add(WORD), stack, words)?;
    Some(Cursor { pc, sp: fp.wrapping_add(2 * WORD), fp: caller_fp })
}

#[inline(always)]
fn read(address: u64, stack: &mut StackMemory, words: &mut Words) -> Option<u64> {
    let value = stack.read(address)?;
    words.push(address, value);
    Some(value)
}
