//! Why a window is refused, and what the caller can do instead.

use alloc::string::String;
use core::fmt;

use grapnel_arch::{CodeAddr, Isa, x86_64};
#[cfg(feature = "arm")]
use grapnel_arch::{a32, aarch64, t32};

/// The instruction that an error is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Culprit {
    /// Its address.
    pub at: CodeAddr,
    /// Its bytes; for bytes that are no instruction, as many as there were.
    pub bytes: arrayvec::ArrayVec<u8, 15>,
    /// It as text, in the manual's syntax.
    pub text: String,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} (", self.text, self.at)?;
        for byte in &self.bytes {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

/// Why an instruction has no relocation, by instruction set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// x86-64.
    #[error(transparent)]
    X86_64(#[from] x86_64::Unsupported),
    /// AArch64.
    #[cfg(feature = "arm")]
    #[error(transparent)]
    Aarch64(#[from] aarch64::Unsupported),
    /// T32.
    #[cfg(feature = "arm")]
    #[error(transparent)]
    T32(#[from] t32::Unsupported),
    /// A32.
    #[cfg(feature = "arm")]
    #[error(transparent)]
    A32(#[from] a32::Unsupported),
}

impl Unsupported {
    /// A stable name of the cause, for machines.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::X86_64(reason) => reason.kind(),
            #[cfg(feature = "arm")]
            Self::Aarch64(reason) => reason.kind(),
            #[cfg(feature = "arm")]
            Self::T32(reason) => reason.kind(),
            #[cfg(feature = "arm")]
            Self::A32(reason) => reason.kind(),
        }
    }
}

/// Why a window, a plan or a redirect can't be had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// More bytes were asked for than a window holds.
    #[error("a window of {min_len} bytes at {at} is longer than the longest possible one of {max} bytes")]
    WindowTooLong {
        /// The window's start.
        at: CodeAddr,
        /// What was asked for.
        min_len: usize,
        /// What is possible.
        max: usize,
    },
    /// Instructions lie at multiples of a number of bytes, and this address is none.
    #[error("no instruction can be at {at}, which is not a multiple of {align}")]
    Misaligned {
        /// The window's start or the destination.
        at: CodeAddr,
        /// What it must be a multiple of.
        align: u64,
    },
    /// The bytes given end inside the window.
    #[error("the bytes given end inside the instruction at {at}")]
    Truncated {
        /// Where the unfinished instruction starts.
        at: CodeAddr,
    },
    /// The bytes are no instruction.
    #[error("the bytes are no defined instruction: {culprit}")]
    Undefined {
        /// The bytes.
        culprit: Culprit,
    },
    /// The function ends before the window is long enough, and what follows is not shown to be padding.
    #[error(
        "the function ends with {culprit}; the window is short by {short_by}, and no padding of that length is known to follow"
    )]
    EndsEarly {
        /// The instruction that ends the function.
        culprit: Culprit,
        /// How many bytes are missing.
        short_by: usize,
    },
    /// The window reaches beyond the function's extent, whose last instruction may go on.
    #[error(
        "the window reaches beyond the function, which is {extent} bytes long and goes on behind {culprit}"
    )]
    BeyondExtent {
        /// The instruction at the end.
        culprit: Culprit,
        /// The function's length in bytes.
        extent: usize,
    },
    /// A breakpoint is planted in the window.
    #[error("a breakpoint is in the window: {culprit}")]
    Breakpoint {
        /// The breakpoint.
        culprit: Culprit,
    },
    /// An instruction transfers control or uses its address in a way that has no relocation.
    #[error("{reason}: {culprit}")]
    Unsupported {
        /// The instruction.
        culprit: Culprit,
        /// Why it has none.
        reason: Unsupported,
    },
    /// An x87 instruction and a later one that stores its address are both in the window.
    #[error("it stores the address of an x87 instruction that the window moves: {culprit}")]
    StoresFip {
        /// The instruction that stores the address.
        culprit: Culprit,
    },
    /// A branch goes to the middle of an instruction of the window.
    #[error("it branches into the middle of an instruction of the window: {culprit}")]
    TargetInsideInstruction {
        /// The branch.
        culprit: Culprit,
        /// Its target.
        target: CodeAddr,
    },
    /// A call goes into the window, so its return address has a meaning at the original place only.
    #[error("it calls into the window: {culprit}")]
    CallIntoWindow {
        /// The call.
        culprit: Culprit,
        /// Its target.
        target: CodeAddr,
    },
    /// An instruction accesses the window's own bytes, which a patch changes, or takes the address of one inside it,
    /// which has no other use.
    #[error("it uses the bytes of the window itself, at {target}: {culprit}")]
    UsesWindow {
        /// The instruction.
        culprit: Culprit,
        /// The address used.
        target: CodeAddr,
    },
    /// The destination overlaps the window.
    #[error("the relocated code at {to} would overlap the window at {from}")]
    Overlaps {
        /// The window's start.
        from: CodeAddr,
        /// The destination of the relocation.
        to: CodeAddr,
    },
    /// There is no register that may be changed, and none can be kept elsewhere meanwhile.
    #[error("it needs a register that is free, and none is known to be: {culprit}")]
    NoScratch {
        /// The instruction; the last one of the window, if it is the jump back.
        culprit: Culprit,
    },
    /// The code would go round the end of the address space, which A32 and T32 have at 4 GiB.
    #[error("{isa} code at {at} would go round the end of the address space")]
    BeyondAddressSpace {
        /// The address.
        at: CodeAddr,
        /// The instruction set.
        isa: Isa,
    },
    /// Support for the instruction set was left out when the library was built (feature `arm`).
    #[error("this build can't decode the instruction set of the code at {at}")]
    NotBuilt {
        /// The window's start, or the redirect's place.
        at: CodeAddr,
    },
    /// The instruction set has no redirect of this form.
    #[error("{isa} has no such redirect, at {from}")]
    NoSuchRedirect {
        /// Where the redirect was to stand.
        from: CodeAddr,
        /// The instruction set.
        isa: Isa,
    },
    /// A redirect's field can't hold the distance.
    #[error("a redirect of {len} bytes at {from} does not reach {to}")]
    RedirectOutOfReach {
        /// Where the redirect was to stand.
        from: CodeAddr,
        /// Where it was to go.
        to: CodeAddr,
        /// The redirect's length in bytes.
        len: usize,
    },
}

impl Error {
    /// A stable name of the cause, for machines.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::WindowTooLong { .. } => "window-too-long",
            Self::Misaligned { .. } => "misaligned",
            Self::Truncated { .. } => "truncated",
            Self::Undefined { .. } => "undefined",
            Self::EndsEarly { .. } => "ends-early",
            Self::BeyondExtent { .. } => "beyond-extent",
            Self::Breakpoint { .. } => "breakpoint",
            Self::Unsupported { reason, .. } => reason.kind(),
            Self::StoresFip { .. } => "stores-fip",
            Self::TargetInsideInstruction { .. } => "target-inside-instruction",
            Self::CallIntoWindow { .. } => "call-into-window",
            Self::UsesWindow { .. } => "uses-window",
            Self::Overlaps { .. } => "overlaps",
            Self::NoScratch { .. } => "no-scratch",
            Self::BeyondAddressSpace { .. } => "beyond-address-space",
            Self::NotBuilt { .. } => "not-built",
            Self::NoSuchRedirect { .. } => "no-such-redirect",
            Self::RedirectOutOfReach { .. } => "redirect-out-of-reach",
        }
    }

    /// The instruction at fault, where it is one.
    #[must_use]
    pub const fn culprit(&self) -> Option<&Culprit> {
        match self {
            Self::Undefined { culprit }
            | Self::EndsEarly { culprit, .. }
            | Self::BeyondExtent { culprit, .. }
            | Self::Breakpoint { culprit }
            | Self::Unsupported { culprit, .. }
            | Self::StoresFip { culprit }
            | Self::TargetInsideInstruction { culprit, .. }
            | Self::CallIntoWindow { culprit, .. }
            | Self::UsesWindow { culprit, .. }
            | Self::NoScratch { culprit } => Some(culprit),
            _ => None,
        }
    }

    /// The address at fault.
    #[must_use]
    pub const fn at(&self) -> CodeAddr {
        match self {
            Self::WindowTooLong { at, .. }
            | Self::Misaligned { at, .. }
            | Self::BeyondAddressSpace { at, .. }
            | Self::NotBuilt { at }
            | Self::Truncated { at } => *at,
            Self::Overlaps { from, .. }
            | Self::NoSuchRedirect { from, .. }
            | Self::RedirectOutOfReach { from, .. } => *from,
            _ => match self.culprit() {
                Some(culprit) => culprit.at,
                None => CodeAddr(0),
            },
        }
    }

    /// What the caller could do instead.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::WindowTooLong { .. } => {
                "ask for a shorter window, and reach far destinations through an island"
            }
            Self::Misaligned { .. } => "choose an address at which an instruction can be",
            Self::Truncated { .. } => {
                "give at least 15 bytes beyond the window, or choose a shorter redirect"
            }
            Self::Undefined { .. } => "check that the address is the start of an instruction",
            Self::EndsEarly { .. } | Self::BeyondExtent { .. } => {
                "use a shorter redirect: 2 bytes to an island nearby, or a breakpoint; or allow padding to be overwritten"
            }
            Self::Breakpoint { .. } => "remove the breakpoint first, or hook behind it",
            Self::Unsupported { .. } | Self::StoresFip { .. } => {
                "use a shorter redirect that leaves this instruction in place"
            }
            Self::TargetInsideInstruction { .. } => {
                "use a shorter redirect that leaves the branch or its target in place"
            }
            Self::CallIntoWindow { .. } => {
                "use a shorter redirect that leaves the call or its target in place"
            }
            Self::UsesWindow { .. } => "use a shorter redirect that leaves the bytes used in place",
            Self::NoScratch { .. } => {
                "choose a destination inside the plan's reach, or give more of the code ahead"
            }
            Self::BeyondAddressSpace { .. } => "choose an address further from the end of the address space",
            Self::NotBuilt { .. } => "build with the feature `arm`",
            Self::NoSuchRedirect { .. } => "use a redirect of another form",
            Self::Overlaps { .. } => "choose a destination outside the window",
            Self::RedirectOutOfReach { .. } => "use a longer redirect, or an island in between",
        }
    }
}
