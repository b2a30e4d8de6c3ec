//! What a window becomes, before a destination is known; and what it became at one.

use arrayvec::ArrayVec;
use grapnel_arch::CodeAddr;

use crate::{
    Error, PcMap, Reach, Window,
    window::Insts,
    x86_64::{self, Plan},
};

/// The longest that relocated code can be, in bytes, for the longest window.
pub const MAX_EMITTED: usize = 512;

/// The registers that relocated code changes beyond what the original does.
///
/// On x86-64 there are none: every instruction that is accepted is rewritten without a scratch register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Clobbers(());

impl Clobbers {
    /// Nothing beyond the original's own registers is changed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        true
    }

    /// The registers' names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        core::iter::empty()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Lowered {
    X86_64(Plan),
}

/// How each instruction of a window is rewritten. It has no side effects, and can be emitted any number of times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelocationPlan {
    lowered: Lowered,
}

impl RelocationPlan {
    /// Plans the relocation of a window.
    ///
    /// # Errors
    ///
    /// If an instruction can't be relocated truly, whatever the destination.
    pub fn new(window: &Window) -> Result<Self, Error> {
        let lowered = match &window.insts {
            Insts::X86_64(insts) => Lowered::X86_64(x86_64::plan(window, insts)?),
        };
        Ok(Self { lowered })
    }

    /// The most bytes that [`RelocationPlan::emit`] writes, with the jump back and all literals, whatever the
    /// destination.
    #[must_use]
    pub fn max_len(&self) -> usize {
        match &self.lowered {
            Lowered::X86_64(plan) => plan.max_len(),
        }
    }

    /// The destinations for which every near form suffices, the jump back included. [`Reach::ALL`] if there is nothing
    /// to reach.
    ///
    /// Outside it branches go through literals, where [`RelocationPlan::required_reach`] allows.
    #[must_use]
    pub fn reach(&self) -> Reach {
        match &self.lowered {
            Lowered::X86_64(plan) => plan.reach(),
        }
    }

    /// The destinations for which the plan can be emitted at all: those near the operands that have no far form.
    #[must_use]
    pub fn required_reach(&self) -> Reach {
        match &self.lowered {
            Lowered::X86_64(plan) => plan.required_reach(),
        }
    }

    /// Execution can fall out of the window's end, so the relocated code ends with a jump to what follows it.
    #[must_use]
    pub fn resumes(&self) -> bool {
        match &self.lowered {
            Lowered::X86_64(plan) => plan.resumes(),
        }
    }

    /// The offsets in the window of its calls, whose return addresses will lie in the relocated code.
    ///
    /// An exception that passes such a call is looked up by that address: the handlers and cleanups which the function's
    /// own tables give for the original call are not found, unless the relocated code has tables that say the same.
    pub fn calls(&self) -> impl Iterator<Item = usize> + '_ {
        match &self.lowered {
            Lowered::X86_64(plan) => plan.calls(),
        }
    }

    /// Writes the code that runs at `to`.
    ///
    /// # Errors
    ///
    /// If `to` is outside [`RelocationPlan::required_reach`] or the code would overlap the window.
    pub fn emit(&self, to: CodeAddr) -> Result<Relocated, Error> {
        match &self.lowered {
            Lowered::X86_64(plan) => plan.emit(to),
        }
    }
}

/// Code for one destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relocated {
    pub(crate) bytes: ArrayVec<u8, MAX_EMITTED>,
    pub(crate) literals_at: usize,
    pub(crate) map: PcMap,
    pub(crate) resumes: bool,
}

impl Relocated {
    /// The code, and behind it its literals. It is never written to when it runs.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The literals alone, which the code reads and nothing executes.
    #[must_use]
    pub fn literals(&self) -> &[u8] {
        &self.bytes[self.literals_at..]
    }

    /// Where each instruction went.
    #[must_use]
    pub const fn map(&self) -> &PcMap {
        &self.map
    }

    /// The registers it changes beyond what the original does.
    #[must_use]
    pub const fn clobbers(&self) -> Clobbers {
        Clobbers(())
    }

    /// It ends with a jump to what follows the window.
    #[must_use]
    pub const fn resumes(&self) -> bool {
        self.resumes
    }
}
