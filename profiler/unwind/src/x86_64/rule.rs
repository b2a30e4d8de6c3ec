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
    /// Not a frame.
    pub const NOT_CODE: UnwindRule = Self::bare(RuleKind::NotCode);

    /// Whether the caller follows from pc, sp and the stack alone: bp is no part of the step.
    #[inline(always)]
    pub(crate) fn ignores_bp(self) -> bool {
        matches!((self.kind, self.bp), (RuleKind::Sp, FrameRegister::AtCfa))
    }

    const fn bare(kind: RuleKind) -> Self {
        UnwindRule { kind, bp: FrameRegister::Same, bp_offset: 0, cfa_offset: 0 }
    }
}

const _: () = assert!(size_of::<UnwindRule>() == 8);
