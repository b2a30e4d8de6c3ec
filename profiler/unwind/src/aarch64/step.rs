//! From a frame to its caller by a fast rule. The inner loop of a walk.

use super::call::returns_to;
use super::registers::CODE;
use super::rule::{FrameRegister, PackedRule, RuleKind};
use crate::frame_pointer::{FramePointer, LARGEST_GUESSED_FRAME, read};
use crate::memo::Words;
use crate::stack::{StackMemory, is_far};
use crate::start::Cursor;

const WORD: u64 = 8;

/// The pc and the sp of the caller's frame, by a rule of kind `Sp` or `Fp`; `None` where it can't be found and for
/// other kinds. A caller at pc 0 is the end of the stack.
///
/// `fp` becomes that of the caller. Unless the rule ignores it, it must have been [settled](FramePointer::settle).
/// Each word that is read goes to `words`; with the one of `settle` there are at most two. A result other than
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
    } else if rule.is(RuleKind::Fp) {
        fp.value().wrapping_add(rule.cfa_offset())
    } else {
        return None;
    };
    if is_far(sp, cfa) && !stack.goes_far(sp, cfa, rule.is(RuleKind::Sp)) {
        return None;
    }
    let pc = read(cfa.wrapping_add(rule.pc_offset()), stack, words)? & CODE;
    if rule.finds_fp(FrameRegister::AtCfa) {
        let slot = cfa.wrapping_add(rule.fp_offset());
        if slot == 0 {
            return None;
        }
        fp.is_at(slot);
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

/// The caller's frame, by a frame pointer that nothing vouches for: that it points at a frame record (AAPCS64, section
/// 6.4.6) is assumed, and checked.
///
/// Where the record lies in its frame is up to who compiled it, so the caller's sp isn't known. Code that finds its
/// CFA by sp, as gcc's does, has sp where its own record is, unless it has arguments on the stack.
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
    let pc = read(fp.wrapping_add(WORD), stack, words)? & CODE;
    let end = fp.wrapping_add(2 * WORD);
    Some(Cursor { pc, sp: if caller_fp >= end { caller_fp } else { end }, fp: caller_fp })
}

// Words of 8 bytes are read.
#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::super::rule::UnwindRule;
    use super::*;

    const SIGNED: u64 = 0x00a5 << 48;

    #[test]
    fn a_signature_is_no_part_of_a_return_address() {
        let frame = [0, 0x1234, 0x40_0000 | SIGNED, 7];
        let at = frame.as_ptr().addr() as u64;
        let rule = |fp| {
            PackedRule::new(UnwindRule {
                kind: RuleKind::Sp,
                fp,
                cfa_offset: 4,
                pc_offset: -2,
                fp_offset: -3,
            })
        };
        let mut stack = StackMemory::new();
        stack.begin(at);
        let mut fp = FramePointer::known(9);
        let words = &mut Words::none();
        let caller = step(rule(FrameRegister::Same), at, &mut fp, &mut stack, words);
        assert_eq!((caller, fp.value()), (Some((0x40_0000, at + 32)), 9));
        let caller = step(rule(FrameRegister::AtCfa), at, &mut fp, &mut stack, words);
        assert!(caller.is_some() && fp.settle(&mut stack, words));
        assert_eq!(fp.value(), 0x1234);
    }

    #[test]
    fn records_are_followed_as_far_as_they_go_up() {
        let mut frames = [0u64; 8];
        let at = frames.as_ptr().addr() as u64;
        frames[1] = at + 32;
        frames[2] = 0x50_0000 | SIGNED;
        frames[5] = 0x51_0000;
        std::hint::black_box(&mut frames);
        let step = |fp| {
            let mut stack = StackMemory::new();
            stack.begin(at);
            step_by_frame_pointer(Cursor { pc: 1, sp: at, fp }, &mut stack, &mut Words::none())
        };
        assert_eq!(step(at + 8), Some(Cursor { pc: 0x50_0000, sp: at + 32, fp: at + 32 }));
        assert_eq!(step(at + 32), Some(Cursor { pc: 0x51_0000, sp: at + 48, fp: 0 }));
        assert_eq!(step(0).map(|caller| caller.pc), Some(0));
        for bad in [at - 8, at + 4, at + (2 << 20), u64::MAX - 7, 1 << 63] {
            assert_eq!(step(bad), None, "{bad:x}");
        }
    }
}
