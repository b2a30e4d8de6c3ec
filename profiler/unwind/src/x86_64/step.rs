//! From a frame to its caller by a fast rule. The inner loop of a walk.

use super::registers::Cursor;
use super::rule::{FrameRegister, RuleKind, UnwindRule};
use crate::memo::Words;
use crate::stack::StackMemory;

const WORD: u64 = 8;
/// A guess that would make a frame larger than this is not believed.
const LARGEST_GUESSED_FRAME: u64 = 1 << 20;

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// The cursor is at the caller.
    Next,
    /// There is no caller.
    Root,
    /// The caller can't be found.
    Stuck,
    /// The frame needs a full step.
    Full,
}

/// Moves `at` to the caller. Each word that is read goes to `words`; there are at most three.
///
/// Apart from `Stuck`, the result is a function of the rule, the cursor and these words.
#[inline(always)]
pub(crate) fn step(rule: UnwindRule, at: &mut Cursor, stack: &mut StackMemory, words: &mut Words) -> Stepped {
    walk_by(rule, at, stack, words).unwrap_or(Stepped::Stuck)
}

#[inline(always)]
fn walk_by(rule: UnwindRule, at: &mut Cursor, stack: &mut StackMemory, words: &mut Words) -> Option<Stepped> {
    let offset = i64::from(rule.cfa_offset) as u64;
    let cfa = match rule.kind {
        RuleKind::Sp => at.sp.wrapping_add(offset),
        RuleKind::Bp => at.fp.wrapping_add(offset),
        RuleKind::BpDeref => read(at.fp.wrapping_add(offset), stack, words)?,
        RuleKind::Root => return Some(Stepped::Root),
        RuleKind::Full => return Some(Stepped::Full),
        RuleKind::NotCode => return None,
        RuleKind::FramePointer => return by_frame_pointer(at, stack, words),
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
    *at = Cursor { pc, sp: cfa, fp };
    Some(if pc == 0 { Stepped::Root } else { Stepped::Next })
}

/// Follows a frame pointer that nothing vouches for: `push rbp; mov rbp, rsp` is assumed, and checked.
#[cold]
#[inline(never)]
pub(super) fn by_frame_pointer(
    at: &mut Cursor,
    stack: &mut StackMemory,
    words: &mut Words,
) -> Option<Stepped> {
    stack.distrust();
    let fp = at.fp;
    if fp == 0 {
        return Some(Stepped::Root);
    }
    let distance = fp.checked_sub(at.sp)?;
    if !fp.is_multiple_of(WORD) || distance > LARGEST_GUESSED_FRAME {
        return None;
    }
    let caller_fp = read(fp, stack, words)?;
    let pc = read(fp.wrapping_add(WORD), stack, words)?;
    *at = Cursor { pc, sp: fp.wrapping_add(2 * WORD), fp: caller_fp };
    Some(if pc == 0 { Stepped::Root } else { Stepped::Next })
}

#[inline(always)]
fn read(address: u64, stack: &mut StackMemory, words: &mut Words) -> Option<u64> {
    let value = stack.read(address)?;
    words.push(address, value);
    Some(value)
}
