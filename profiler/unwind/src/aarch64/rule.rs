//! How to get from a frame to its caller, in eight bytes.

/// Where the CFA is, or why there is none. The caller's sp is the CFA. Offsets are in words of 8 bytes.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleKind {
    /// No code can be at this pc.
    NotCode = 0,
    /// `CFA = sp + 8 * offset`
    Sp,
    /// `CFA = x29 + 8 * offset`
    Fp,
    /// The frame is the outermost one: its return address is undefined.
    Root,
    /// There is no CFI: x29 points at a frame record, which is checked, and a guess.
    FramePointer,
    /// Needs more than pc, sp and x29.
    Full,
    /// A handler of a signal returns here, to what the signal stopped.
    Signal,
}

/// What x29 was in the caller.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameRegister {
    /// `x29 = x29`
    Same = 0,
    /// `x29 = *(CFA + 8 * offset)`
    AtCfa,
}

/// A rule for a pc.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwindRule {
    /// Which kind of rule.
    pub kind: RuleKind,
    /// How the caller's x29 is found.
    pub fp: FrameRegister,
    /// The offset that `kind` takes.
    pub cfa_offset: u16,
    /// `pc = *(CFA + 8 * offset)`, without a signature.
    pub pc_offset: i16,
    /// The offset that `fp` takes.
    pub fp_offset: i16,
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
        UnwindRule { kind, fp: FrameRegister::Same, cfa_offset: 0, pc_offset: 0, fp_offset: 0 }
    }
}

const _: () = assert!(size_of::<UnwindRule>() == 8);

/// A rule in one word, as the cache holds it: a step takes its parts out by shifts, and nothing goes through memory.
///
/// `kind`, `fp`, `cfa_offset`, `pc_offset` and `fp_offset` from the lowest bits up. Zero is a rule of kind `NotCode`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedRule(u64);

impl PackedRule {
    pub(crate) const fn new(rule: UnwindRule) -> Self {
        let cfa_offset = (rule.cfa_offset as u64) << 16;
        let pc_offset = (rule.pc_offset as u16 as u64) << 32;
        let fp_offset = (rule.fp_offset as u16 as u64) << 48;
        PackedRule(rule.kind as u64 | ((rule.fp as u64) << 8) | cfa_offset | pc_offset | fp_offset)
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
    pub(crate) fn finds_fp(self, how: FrameRegister) -> bool {
        (self.0 >> 8) as u8 == how as u8
    }

    /// `CFA = sp + offset`, and the caller's x29 is saved in the frame: the caller follows from pc, sp and the stack
    /// alone.
    #[inline(always)]
    pub(crate) fn ignores_fp(self) -> bool {
        const IGNORES: u16 = RuleKind::Sp as u16 | ((FrameRegister::AtCfa as u16) << 8);
        self.0 as u16 == IGNORES
    }

    /// In bytes, to be added.
    #[inline(always)]
    pub(crate) fn cfa_offset(self) -> u64 {
        u64::from((self.0 >> 16) as u16) * 8
    }

    /// In bytes, sign-extended, to be added.
    #[inline(always)]
    pub(crate) fn pc_offset(self) -> u64 {
        (i64::from((self.0 >> 32) as i16) * 8).cast_unsigned()
    }

    /// In bytes, sign-extended, to be added.
    #[inline(always)]
    pub(crate) fn fp_offset(self) -> u64 {
        (i64::from((self.0 >> 48) as i16) * 8).cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_rule_says_the_same() {
        for kind in [RuleKind::NotCode, RuleKind::Sp, RuleKind::Fp, RuleKind::Full] {
            for fp in [FrameRegister::Same, FrameRegister::AtCfa] {
                for (cfa_offset, pc_offset, fp_offset) in
                    [(0, 0, 0), (2, -1, -2), (u16::MAX, i16::MIN, i16::MAX), (1, i16::MAX, i16::MIN)]
                {
                    let rule = UnwindRule { kind, fp, cfa_offset, pc_offset, fp_offset };
                    let packed = PackedRule::new(rule);
                    assert!(packed.is(kind) && packed.finds_fp(fp));
                    assert_eq!(packed.ignores_fp(), kind == RuleKind::Sp && fp == FrameRegister::AtCfa);
                    assert_eq!(packed.cfa_offset(), u64::from(cfa_offset) * 8);
                    assert_eq!(packed.pc_offset() as i64, i64::from(pc_offset) * 8);
                    assert_eq!(packed.fp_offset() as i64, i64::from(fp_offset) * 8);
                }
            }
        }
        assert_eq!(PackedRule::new(UnwindRule::NOT_CODE), PackedRule::default());
    }
}
