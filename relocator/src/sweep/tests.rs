//! Functions that are made to be hard: the work grows with their length and no faster.

use std::{cell::Cell, thread_local};

use grapnel_arch::{DecodeError, aarch64, t32};

use super::*;

thread_local! {
    /// How many instructions were decoded.
    static DECODED: Cell<usize> = const { Cell::new(0) };
    /// How many instructions lay in the runs that were asked about, all runs together.
    static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
}

/// An instruction that counts what is asked of it.
#[derive(Clone, Copy)]
struct Counted<I>(I);

fn counted<I: Instruction>(run: &[Counted<I>]) -> Vec<I> {
    LOOKED_AT.set(LOOKED_AT.get() + run.len());
    run.iter().map(|inst| inst.0).collect()
}

impl<I: Instruction> Instruction for Counted<I> {
    const UNIT: usize = I::UNIT;
    const MIXED: bool = I::MIXED;
    const ALIGNMENT: u64 = I::ALIGNMENT;
    const ADDRESS: u64 = I::ADDRESS;

    fn decode_behind(run: &[Self], at: CodeAddr, bytes: &[u8]) -> Result<Self, DecodeError> {
        DECODED.set(DECODED.get() + 1);
        let last: Vec<I> = run.last().map(|inst| inst.0).into_iter().collect();
        I::decode_behind(&last, at, bytes).map(Self)
    }

    fn culprit_behind(run: &[Self], at: CodeAddr, bytes: &[u8]) -> Culprit {
        I::culprit_behind(&counted(run), at, bytes)
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn culprit(&self) -> Culprit {
        self.0.culprit()
    }

    fn is_padding(&self) -> bool {
        self.0.is_padding()
    }

    fn is_breakpoint(&self) -> bool {
        self.0.is_breakpoint()
    }

    fn is_exit(&self) -> bool {
        self.0.is_exit()
    }

    fn branch(&self) -> Option<Branch> {
        self.0.branch()
    }

    fn branches_into_switch(&self) -> bool {
        self.0.branches_into_switch()
    }

    fn operand(run: &[Self]) -> Option<Operand> {
        I::operand(&counted(run))
    }

    fn constants(run: &[Self]) -> Option<Operand> {
        I::constants(&counted(run))
    }

    fn indirect(run: &[Self]) -> Indirect {
        I::indirect(&counted(run))
    }
}

/// The verdict on a window of 4 bytes at the start, if the work stayed within its bounds.
#[track_caller]
fn bounded<I: Instruction>(code: &[u8]) -> Verdict {
    DECODED.set(0);
    LOOKED_AT.set(0);
    let verdict =
        check::<Counted<I>>(code, CodeAddr(0x40_0000), 0..4, Scope::Function, &Surroundings::default());
    let (decoded, looked_at) = (DECODED.get(), LOOKED_AT.get());
    assert!(decoded <= MAX_SWEEPS * code.len() / I::UNIT, "{decoded} instructions were decoded");
    assert!(looked_at <= 3 * LOOK_BACK * decoded, "{looked_at} instructions were looked at");
    verdict
}

fn bytes<const N: usize>(code: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    code.into_iter().flatten().collect()
}

/// Each sweep shows one more load: each reads the halfword that hides the load before it.
#[test]
fn loads_that_show_one_by_one() {
    // A halfword that makes one instruction with the first half of ldrh.w r0, [pc, #-12] behind it; and nop.
    let chain = [0xef00, 0xf83f, 0x000c, 0xbf00_u16].repeat(2000);
    let end = [0xf83f, 0x000c, 0x4770, 0xbf00];
    let verdict = bounded::<t32::Inst>(&bytes(chain.into_iter().chain(end).map(u16::to_le_bytes)));
    assert!(matches!(verdict, Verdict::Assumed(_)), "{verdict:?}");
}

/// Every sum could be the address that a page and an offset make.
#[test]
fn sums_without_end() {
    // add x0, x1, #1; ret
    let code = [0x9100_0420_u32].repeat(8000).into_iter().chain([0xd65f_03c0]);
    assert_eq!(bounded::<aarch64::Inst>(&bytes(code.map(u32::to_le_bytes))), Verdict::Proven);
}

/// Every branch could lead to a switch whose bound lies before it.
#[test]
fn branches_into_switches_without_end() {
    // b.ls +8; ret; ret
    let code = [0x5400_0049_u32].repeat(8000).into_iter().chain([0xd65f_03c0; 2]);
    assert_eq!(bounded::<aarch64::Inst>(&bytes(code.map(u32::to_le_bytes))), Verdict::Proven);
}
