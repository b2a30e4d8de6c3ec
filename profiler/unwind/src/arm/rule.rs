//! How to get from a frame to its caller, in eight bytes.

/// Where the CFA is, or why there is none. The caller's sp is the CFA.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleKind {
    /// No code can be at this pc.
    NotCode = 0,
    /// `CFA = sp + offset`
    Sp,
    /// `CFA = r7 + offset`: T32 code with frames of variable size.
    R7,
    /// `CFA = r11 + offset`: A32 code with frames of variable size.
    R11,
    /// The frame is the outermost one, or can't be unwound: `EXIDX_CANTUNWIND` says both.
    Root,
    /// There is no entry: r7 or r11 points at a frame record, which is checked, and a guess.
    FramePointer,
    /// As `Sp`, `R7` and `R11`, by what the code does and no table: a guess, and what it leads to is checked.
    GuessedSp,
    /// See above.
    GuessedR7,
    /// See above.
    GuessedR11,
    /// Needs more than pc, sp, r7 and r11.
    Full,
}

/// A rule for a pc. Places are in words below the CFA; 0 stands for a register that is what it was.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwindRule {
    /// Which kind of rule.
    pub kind: RuleKind,
    /// `pc = *(CFA - 4 * place)`. Not 0.
    pub pc: u8,
    /// `r7 = *(CFA - 4 * place)`
    pub r7: u8,
    /// `r11 = *(CFA - 4 * place)`
    pub r11: u8,
    /// The offset that `kind` takes.
    pub cfa_offset: i32,
}

impl UnwindRule {
    /// The outermost frame.
    pub const ROOT: UnwindRule = Self::bare(RuleKind::Root);
    /// A frame without an entry.
    pub const FRAME_POINTER: UnwindRule = Self::bare(RuleKind::FramePointer);
    /// A frame that takes a full step.
    pub const FULL: UnwindRule = Self::bare(RuleKind::Full);
    /// Not a frame.
    pub const NOT_CODE: UnwindRule = Self::bare(RuleKind::NotCode);

    const fn bare(kind: RuleKind) -> Self {
        UnwindRule { kind, pc: 0, r7: 0, r11: 0, cfa_offset: 0 }
    }
}

const _: () = assert!(size_of::<UnwindRule>() == 8);

/// A rule in one word, as the cache holds it: `kind`, `pc`, `r7`, `r11` and `cfa_offset` from the lowest bits up. Zero is
/// a rule of kind `NotCode`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedRule(u64);

impl PackedRule {
    /// All of it.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn new(rule: UnwindRule) -> Self {
        let places = (rule.pc as u64) << 8 | (rule.r7 as u64) << 16 | (rule.r11 as u64) << 24;
        PackedRule(rule.kind as u64 | places | (rule.cfa_offset as u32 as u64) << 32)
    }

    #[inline(always)]
    pub(crate) fn is(self, kind: RuleKind) -> bool {
        self.0 as u8 == kind as u8
    }

    /// Whether the frame is that of a signal: such frames have no rule of their own.
    #[inline(always)]
    pub(crate) fn is_signal(self) -> bool {
        false
    }

    /// Whether nothing vouches for what the rule leads to.
    #[inline(always)]
    pub(crate) fn is_guess(self) -> bool {
        let kind = self.0 as u8;
        RuleKind::FramePointer as u8 <= kind && kind <= RuleKind::GuessedR11 as u8
    }

    /// What is guessed, as if a table said it. `None` where that is no rule of the frame's own.
    pub(super) fn trusted(self) -> Option<Self> {
        let kind = [
            (RuleKind::GuessedSp, RuleKind::Sp),
            (RuleKind::GuessedR7, RuleKind::R7),
            (RuleKind::GuessedR11, RuleKind::R11),
        ]
        .into_iter()
        .find_map(|(guessed, kind)| self.is(guessed).then_some(kind))?;
        Some(PackedRule(self.0 & !0xff | kind as u64))
    }

    /// `CFA = sp + offset`, and both registers that may be a frame pointer are saved in the frame: the caller follows
    /// from pc, sp and the stack alone.
    #[inline(always)]
    pub(crate) fn ignores_fp(self) -> bool {
        self.is(RuleKind::Sp) && self.r7() != 0 && self.r11() != 0
    }

    /// Sign-extended, to be added.
    #[inline(always)]
    pub(crate) fn cfa_offset(self) -> u64 {
        (self.0.cast_signed() >> 32).cast_unsigned()
    }

    /// How far below the CFA, in bytes.
    #[inline(always)]
    pub(crate) fn pc(self) -> u64 {
        4 * u64::from((self.0 >> 8) as u8)
    }

    /// How far below the CFA, in bytes; 0 where it is what it was.
    #[inline(always)]
    pub(crate) fn r7(self) -> u64 {
        4 * u64::from((self.0 >> 16) as u8)
    }

    /// How far below the CFA, in bytes; 0 where it is what it was.
    #[inline(always)]
    pub(crate) fn r11(self) -> u64 {
        4 * u64::from((self.0 >> 24) as u8)
    }
}
