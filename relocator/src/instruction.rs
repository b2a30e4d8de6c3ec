//! What is asked of an instruction of any set, where its function is swept and where a window ends.

use grapnel_arch::{CodeAddr, DecodeError, TableJump};

use crate::{Culprit, Unsupported};

/// A decoded instruction. `run` is always a run of instructions that are executed one after the other, and ends with the
/// one that is asked about.
pub(crate) trait Instruction: Copy {
    /// Instructions begin at multiples of this many bytes from the function's start.
    const UNIT: usize;
    /// Constants lie among the code as a rule, so that what is taken for code may turn out to be one.
    const MIXED: bool;
    /// What behind a function looks like padding may be another function beyond the next multiple of this.
    const ALIGNMENT: u64;
    /// The bits of an entry of a table that make up the address of code.
    const ADDRESS: u64;

    /// Decodes what is executed right behind the last of `run`.
    fn decode_behind(run: &[Self], at: CodeAddr, bytes: &[u8]) -> Result<Self, DecodeError>;

    /// Of what is no instruction.
    fn culprit_behind(run: &[Self], at: CodeAddr, bytes: &[u8]) -> Culprit;

    /// Why it is refused when [`Instruction::decode_behind`] finds it unpredictable.
    fn unpredictable() -> Option<Unsupported> {
        None
    }

    /// In bytes.
    fn len(&self) -> usize;

    /// How many of `bytes`, which begin with it, no patch may part: more than its own where it rules what follows.
    fn whole_len(&self, _bytes: &[u8]) -> usize {
        self.len()
    }

    fn culprit(&self) -> Culprit;

    fn is_padding(&self) -> bool;

    fn is_breakpoint(&self) -> bool;

    /// No execution goes on behind it.
    fn is_exit(&self) -> bool;

    /// Its direct branch.
    fn branch(&self) -> Option<Branch>;

    /// What came before it counts where its branch leads, too: the comparison of a switch's index.
    fn branches_into_switch(&self) -> bool {
        false
    }

    /// A callee returns here, though the instruction is no call.
    fn return_address(&self) -> Option<CodeAddr> {
        None
    }

    /// The memory that it accesses at a constant place, or whose address it computes.
    fn operand(run: &[Self]) -> Option<Operand>;

    /// The constants that it reads.
    fn constants(_run: &[Self]) -> Option<Operand> {
        None
    }

    /// Its indirect jump.
    fn indirect(run: &[Self]) -> Indirect;
}

/// A direct branch.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "arm"), expect(dead_code, reason = "x86-64 has no other instruction set to go to"))]
pub(crate) enum Branch {
    Jump(CodeAddr),
    Call(CodeAddr),
    /// To code of another instruction set.
    Foreign(CodeAddr),
}

impl Branch {
    /// Where it leads, if that is code of this set.
    pub(crate) const fn target(self) -> Option<CodeAddr> {
        match self {
            Self::Jump(target) | Self::Call(target) => Some(target),
            Self::Foreign(_) => None,
        }
    }
}

/// An indirect jump.
pub(crate) enum Indirect {
    /// None, or one that leaves the function for sure.
    None,
    /// To somewhere.
    Unknown,
    Table(TableJump),
}

impl From<Option<TableJump>> for Indirect {
    fn from(table: Option<TableJump>) -> Self {
        table.map_or(Self::Unknown, Self::Table)
    }
}

/// A place in memory that an instruction names by its distance from the PC.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) target: CodeAddr,
    /// How many bytes are accessed; 0 if the instruction only computes the address.
    pub(crate) access: usize,
}

impl Operand {
    /// The operand's bytes and the window's overlap. The address of the window's start alone is the function's, and is
    /// what everyone else takes it for; one further in is a place to jump to or to read.
    pub(crate) fn touches(self, window: CodeAddr, len: usize) -> bool {
        let (into_window, len) = (self.target.displacement_from(window), len as i64);
        match self.access as i64 {
            0 => 0 < into_window && into_window < len,
            access => into_window < len && into_window.saturating_add(access) > 0,
        }
    }
}
