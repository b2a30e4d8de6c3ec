//! How to get from a frame to its caller, in eight bytes.

/// Where the CFA is, or why there is none. The return address is at `CFA - 8` and the caller's sp is the CFA.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleKind {
    /// No code can be at this pc.
    NotCode = 0,
    /// `CFA = sp + offset`
    Sp,
    /// `CFA = bp + offset`
    Bp,
    /// `CFA = *(bp + offset)`: what gcc emits for a function that realigns its stack (the DRAP pattern).
    BpDeref,
    /// The frame is the outermost one: its return address is undefined.
    Root,
    /// There is no CFI: `CFA = bp + 16`, checked, and a guess.
    FramePointer,
    /// Needs more than pc, sp and bp.
    Full,
    /// A handler of a signal returns here, to what the signal stopped.
    Signal,
}

/// What bp was in the caller.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameRegister {
    /// `bp = bp`
    Same = 0,
    /// `bp = *(CFA + offset)`
    AtCfa,
    /// `bp = *(bp + offset)`
    AtBp,
}

/// A rule for a pc.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwindRule {
    /// Which kind of rule.
    pub kind: RuleKind,
    /// How the caller's bp is found.
    pub bp: FrameRegister,
    /// The offset that `bp` takes.
    pub bp_offset: i16,
    /// The offset that `kind` takes.
    pub cfa_offset: i32,
}

impl UnwindRule {
    /// The outermost frame.
    pub const ROOT: UnwindRule = Self::bare(RuleKind::Root);
    /// A frame without CFI.
    pub const FRAME_POINTER: UnwindRule = Self::bare(RuleKind::FramePointer);
    /// A frame that takes a full step.
    pub const FULL: UnwindRule = Self::bare(RuleKind::Full);
    /// The frame that the kernel leaves the state in of what a signal stopped.
    pub const SIGNAL: UnwindRule = Self::bare(RuleKind::Signal);
    /// Not a frame.
    pub const NOT_CODE: UnwindRule = Self::bare(RuleKind::NotCode);

    const fn bare(kind: RuleKind) -> Self {
        UnwindRule { kind, bp: FrameRegister::Same, bp_offset: 0, cfa_offset: 0 }
    }
}

const _: () = assert!(size_of::<UnwindRule>() == 8);

/// A rule in one word, as the cache holds it: a step takes its parts out by shifts, and nothing goes through memory.
///
/// `kind`, `bp`, `bp_offset` and `cfa_offset` from the lowest bits up. Zero is a rule of kind `NotCode`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedRule(u64);

impl PackedRule {
    pub(crate) const fn new(rule: UnwindRule) -> Self {
        let bp_offset = (rule.bp_offset as u16 as u64) << 16;
        let cfa_offset = (rule.cfa_offset as u32 as u64) << 32;
        PackedRule(rule.kind as u64 | ((rule.bp as u64) << 8) | bp_offset | cfa_offset)
    }

    /// All of it.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) fn is(self, kind: RuleKind) -> bool {
        self.0 as u8 == kind as u8
    }

    /// Whether the frame is that of a signal.
    #[inline(always)]
    pub(crate) fn is_signal(self) -> bool {
        self.is(RuleKind::Signal)
    }

    /// Whether nothing vouches for what the rule leads to.
    #[inline(always)]
    pub(crate) fn is_guess(self) -> bool {
        self.is(RuleKind::FramePointer)
    }

    #[inline(always)]
    pub(crate) fn finds_bp(self, how: FrameRegister) -> bool {
        (self.0 >> 8) as u8 == how as u8
    }

    /// `CFA = sp + offset`, and the caller's bp is saved in the frame: the caller follows from pc, sp and the stack alone.
    #[inline(always)]
    pub(crate) fn ignores_fp(self) -> bool {
        const IGNORES: u16 = RuleKind::Sp as u16 | ((FrameRegister::AtCfa as u16) << 8);
        self.0 as u16 == IGNORES
    }

    /// Sign-extended, to be added.
    #[inline(always)]
    pub(crate) fn cfa_offset(self) -> u64 {
        (self.0.cast_signed() >> 32).cast_unsigned()
    }

    /// Sign-extended, to be added.
    #[inline(always)]
    pub(crate) fn bp_offset(self) -> u64 {
        i64::from((self.0 >> 16) as i16).cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_rule_says_the_same() {
        for kind in [RuleKind::NotCode, RuleKind::Sp, RuleKind::Bp, RuleKind::BpDeref, RuleKind::Full] {
            for bp in [FrameRegister::Same, FrameRegister::AtCfa, FrameRegister::AtBp] {
                for (bp_offset, cfa_offset) in [(0, 8), (-16, i32::MAX), (i16::MIN, i32::MIN), (i16::MAX, -1)]
                {
                    let packed = PackedRule::new(UnwindRule { kind, bp, bp_offset, cfa_offset });
                    assert!(packed.is(kind) && packed.finds_bp(bp));
                    assert_eq!(packed.ignores_fp(), kind == RuleKind::Sp && bp == FrameRegister::AtCfa);
                    assert_eq!(packed.cfa_offset(), i64::from(cfa_offset) as u64);
                    assert_eq!(packed.bp_offset(), i64::from(bp_offset) as u64);
                }
            }
        }
        assert_eq!(PackedRule::new(UnwindRule::NOT_CODE), PackedRule::default());
    }
}
