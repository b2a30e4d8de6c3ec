//! What a window becomes, before a destination is known; and what it became at one.

use arrayvec::ArrayVec;
use grapnel_arch::{CodeAddr, Isa};

use crate::{
    Error, PcMap, Reach, Registers, Window, a32, aarch64, t32,
    window::{Insts, MAX_INSTS, Offsets},
    x86_64,
};

/// The longest that relocated code can be, in bytes, for the longest window.
pub const MAX_EMITTED: usize = 512;

/// Addresses that a relocated window goes to indirectly: at most one by each instruction and one by the jump back.
pub(crate) type LandingPads = ArrayVec<CodeAddr, { MAX_INSTS + 1 }>;

/// What a call of 32-bit Arm goes to.
#[cfg(feature = "arm")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Callee {
    A32(CodeAddr),
    T32(CodeAddr),
    /// The address in a register.
    Register(u8),
}

#[expect(
    clippy::large_enum_variant,
    reason = "the longest form is laid out in place, for nothing here allocates"
)]
#[derive(Clone, PartialEq, Eq, Debug)]
enum Lowered {
    X86_64(x86_64::Plan),
    Aarch64(aarch64::Plan),
    A32(a32::Plan),
    T32(t32::Plan),
}

/// The same expression of the plan of any instruction set.
macro_rules! of_each {
    ($lowered:expr, $plan:ident => $answer:expr) => {
        match $lowered {
            Lowered::X86_64($plan) => $answer,
            Lowered::Aarch64($plan) => $answer,
            Lowered::A32($plan) => $answer,
            Lowered::T32($plan) => $answer,
        }
    };
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
            Insts::Aarch64(insts) => Lowered::Aarch64(aarch64::plan(window, insts)?),
            Insts::A32(insts) => Lowered::A32(a32::plan(window, insts)?),
            Insts::T32(insts) => Lowered::T32(t32::plan(window, insts)?),
        };
        Ok(Self { lowered })
    }

    /// The destinations behind which there is room for the code before the address space ends.
    fn room(&self) -> Reach {
        Reach { lo: CodeAddr(0), hi: CodeAddr(u64::MAX - self.max_len() as u64) }
    }

    const fn isa(&self) -> Isa {
        match self.lowered {
            Lowered::X86_64(_) => Isa::X86_64,
            Lowered::Aarch64(_) => Isa::Aarch64,
            Lowered::A32(_) => Isa::A32,
            Lowered::T32(_) => Isa::T32,
        }
    }

    /// The most bytes that [`RelocationPlan::emit`] writes, with the jump back and all literals, whatever the
    /// destination.
    #[must_use]
    pub fn max_len(&self) -> usize {
        of_each!(&self.lowered, plan => plan.max_len())
    }

    /// The destinations for which every near form suffices, the jump back included. If there is nothing to
    /// reach, all those behind which there is room for the code.
    ///
    /// Outside it branches go through literals and operands through registers, where [`RelocationPlan::required_reach`]
    /// allows. Inside it nothing is clobbered on x86-64.
    #[must_use]
    pub fn reach(&self) -> Reach {
        of_each!(&self.lowered, plan => plan.reach()).intersection(self.room())
    }

    /// The destinations for which the plan can be emitted at all: those near the operands that have no far form.
    #[must_use]
    pub fn required_reach(&self) -> Reach {
        of_each!(&self.lowered, plan => plan.required_reach()).intersection(self.room())
    }

    /// Execution can fall out of the window's end, so the relocated code ends with a jump to what follows it.
    #[must_use]
    pub fn resumes(&self) -> bool {
        of_each!(&self.lowered, plan => plan.resumes())
    }

    /// The offsets in the window of those calls whose return addresses will lie in the relocated code.
    ///
    /// An exception that passes such a call is looked up by that address: the handlers and cleanups which the function's
    /// own tables give for the original call are not found, unless the relocated code has tables that say the same.
    pub fn calls(&self) -> impl Iterator<Item = usize> + use<> {
        let calls: Offsets = of_each!(&self.lowered, plan => plan.calls());
        calls.into_iter().map(usize::from)
    }

    /// Whether a call of the window returns to the original code behind it, past the relocated code. A shadow stack doesn't
    /// let it: [`WindowOptions::shadow_stack`].
    ///
    /// [`WindowOptions::shadow_stack`]: crate::WindowOptions::shadow_stack
    #[must_use]
    pub fn returns_past(&self) -> bool {
        of_each!(&self.lowered, plan => plan.returns_past())
    }

    /// Writes the code that runs at `to`.
    ///
    /// # Errors
    ///
    /// If `to` is outside [`RelocationPlan::required_reach`] or the code would overlap the window.
    pub fn emit(&self, to: CodeAddr) -> Result<Relocated, Error> {
        if !self.room().contains(to) {
            return Err(Error::BeyondAddressSpace { at: to, isa: self.isa() });
        }
        of_each!(&self.lowered, plan => plan.emit(to))
    }
}

/// The window and the code for another address, each by its start and its length, have no byte in common.
pub(crate) fn keep_apart(
    (from, window_len): (CodeAddr, usize),
    (to, len): (CodeAddr, usize),
) -> Result<(), Error> {
    let overlap =
        to.offset_within(from, window_len as u64).is_some() || from.offset_within(to, len as u64).is_some();
    if overlap { Err(Error::Overlaps { from, to }) } else { Ok(()) }
}

/// Code for one destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relocated {
    pub(crate) bytes: ArrayVec<u8, MAX_EMITTED>,
    pub(crate) literals_at: usize,
    pub(crate) map: PcMap,
    pub(crate) clobbers: Registers,
    pub(crate) landing_pads: LandingPads,
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

    /// The registers that it changes beyond what the original does. Each is dead wherever the code leaves for: shown by
    /// the code ahead, or by the ABI where a call, a return or an entry is passed ([`crate::WindowOptions::entry`]).
    #[must_use]
    pub const fn clobbers(&self) -> Registers {
        self.clobbers
    }

    /// The addresses outside it that it goes to indirectly where the original went directly or fell through.
    ///
    /// Where indirect branches are tracked (IBT, BTI) and the page of such an address is guarded, it must begin with a
    /// landing pad.
    #[must_use]
    pub fn landing_pads(&self) -> &[CodeAddr] {
        &self.landing_pads
    }

    /// It ends with a jump to what follows the window.
    #[must_use]
    pub const fn resumes(&self) -> bool {
        self.resumes
    }
}
