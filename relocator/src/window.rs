//! The run of whole instructions that a patch overwrites.

use arrayvec::ArrayVec;
use grapnel_arch::{CodeAddr, DecodeError, Isa};

use crate::{Error, a32, aarch64, instruction::Instruction, t32, x86_64};

/// The longest window that can be asked for, in bytes.
pub const MAX_MIN_LEN: usize = 32;

/// As many instructions as the longest window can hold: of one byte each.
pub(crate) const MAX_INSTS: usize = MAX_MIN_LEN;

/// Offsets of instructions.
pub(crate) type Offsets = ArrayVec<u16, MAX_INSTS>;

/// What the caller knows of the function around the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowOptions {
    /// The function's length in bytes, counted from the window's start (from its symbol or FDE).
    ///
    /// With it, code behind an exit in the window is known to belong to the function; without it, only what the
    /// window's own branches lead to is.
    pub extent: Option<usize>,
    /// Padding behind the function may be overwritten: `nop` and `int3` behind its last exit, up to the next
    /// multiple of 16, where another function could begin.
    pub allow_padding: bool,
    /// The window is at a function's entry, so that registers which hold nothing there by the ABI are dead unless the
    /// code ahead reads them. Without it only those are dead that the code ahead shows to be.
    pub entry: bool,
    /// The processor keeps a second stack of return addresses (a shadow stack, or a guarded control stack), so that a
    /// call returns to where it was made from, and nowhere else. Only x86-64 makes a difference: A32 and T32 have none, and on
    /// AArch64 each call does so in any case.
    pub shadow_stack: bool,
}

impl Default for WindowOptions {
    /// The entry of a function of unknown extent, in a process without a shadow stack.
    fn default() -> Self {
        Self { extent: None, allow_padding: false, entry: true, shadow_stack: false }
    }
}

/// Instructions in the order of an instruction set's decoder.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the longest form is laid out in place, for nothing here allocates"
)]
#[cfg_attr(not(feature = "arm"), expect(dead_code, reason = "only what is built in is made"))]
pub(crate) enum Insts {
    X86_64(x86_64::Insts),
    Aarch64(aarch64::Insts),
    A32(a32::Insts),
    T32(t32::Insts),
}

/// The shortest run of whole instructions that holds a patch of a given length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    pub(crate) from: CodeAddr,
    pub(crate) len: usize,
    pub(crate) code_len: usize,
    pub(crate) insts: Insts,
}

impl Window {
    /// Decodes the window at `from`, whose bytes begin `bytes`, without knowledge of the function around it.
    ///
    /// `bytes` should run at least 15 bytes past `min_len`, so that the last instruction is whole.
    ///
    /// # Errors
    ///
    /// As [`Window::decode_with`].
    pub fn decode(isa: Isa, from: CodeAddr, bytes: &[u8], min_len: usize) -> Result<Self, Error> {
        Self::decode_with(isa, from, bytes, min_len, WindowOptions::default())
    }

    /// Decodes the window at `from`, whose bytes begin `bytes`.
    ///
    /// # Errors
    ///
    /// If the bytes end early or are no instructions, or the function ends before `min_len` and nothing that may be
    /// overwritten follows it.
    pub fn decode_with(
        isa: Isa,
        from: CodeAddr,
        bytes: &[u8],
        min_len: usize,
        options: WindowOptions,
    ) -> Result<Self, Error> {
        if min_len > MAX_MIN_LEN {
            return Err(Error::WindowTooLong { at: from, min_len, max: MAX_MIN_LEN });
        }
        if from.0.checked_add(bytes.len() as u64).is_none() {
            return Err(Error::BeyondAddressSpace { at: from, isa });
        }
        match isa {
            Isa::X86_64 => x86_64::window(from, bytes, min_len, options),
            Isa::Aarch64 => aarch64::window(from, bytes, min_len, options),
            Isa::A32 => a32::window(from, bytes, min_len, options),
            Isa::T32 => t32::window(from, bytes, min_len, options),
        }
    }

    /// The window's start.
    #[must_use]
    pub const fn from(&self) -> CodeAddr {
        self.from
    }

    /// How many bytes the window takes: whole instructions, and the padding behind them that may be overwritten.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a window has at least one instruction")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// How many of its bytes are instructions of the function, and not padding.
    #[must_use]
    pub const fn code_len(&self) -> usize {
        self.code_len
    }

    /// The instruction set.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        match self.insts {
            Insts::X86_64(_) => Isa::X86_64,
            Insts::Aarch64(_) => Isa::Aarch64,
            Insts::A32(_) => Isa::A32,
            Insts::T32(_) => Isa::T32,
        }
    }

    /// The offset of each instruction.
    pub fn offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let offsets: Offsets = match &self.insts {
            Insts::X86_64(insts) => x86_64::offsets(self.from, insts),
            Insts::Aarch64(insts) => aarch64::offsets(self.from, insts),
            Insts::A32(insts) => a32::offsets(self.from, insts),
            Insts::T32(insts) => t32::offsets(self.from, insts),
        };
        offsets.into_iter().map(usize::from)
    }
}

/// The instruction at `at`, which is executed right behind the last of `run`. A breakpoint is none of the function's.
pub(crate) fn next<I: Instruction>(run: &[I], at: CodeAddr, bytes: &[u8]) -> Result<I, Error> {
    let culprit = || I::culprit_behind(run, at, bytes);
    let inst = I::decode_behind(run, at, bytes).map_err(|error| match (error, I::unpredictable()) {
        (DecodeError::Truncated, _) => Error::Truncated { at },
        (DecodeError::Unpredictable, Some(reason)) => Error::Unsupported { culprit: culprit(), reason },
        _ => Error::Undefined { culprit: culprit() },
    })?;
    if inst.is_breakpoint() { Err(Error::Breakpoint { culprit: inst.culprit() }) } else { Ok(inst) }
}

/// Nothing of the function lies behind the first `len` bytes of the window, of whose code `last` is the last.
///
/// With an extent that is a matter of its length. Without one, what lies behind an exit belongs to the function only
/// if the window is in need of it: a branch of it leads there, or further on in what it still needs.
pub(crate) fn function_ends<I: Instruction>(
    last: &I,
    len: usize,
    extent: Option<usize>,
    is_needed: impl FnOnce() -> bool,
) -> Result<bool, Error> {
    match extent {
        Some(extent) if len < extent => Ok(false),
        Some(extent) if len > extent || !last.is_exit() => {
            Err(Error::BeyondExtent { culprit: last.culprit(), extent })
        }
        Some(_) => Ok(true),
        None => Ok(last.is_exit() && !is_needed()),
    }
}

/// The length of the window with the padding that it needs to be `min_len` long: whole instructions of it, or as
/// many bytes of the last as are needed, for nothing executes them. The function ends after `len` bytes, with `last`.
pub(crate) fn padding<I: Instruction>(
    last: &I,
    from: CodeAddr,
    bytes: &[u8],
    (len, min_len): (usize, usize),
    options: WindowOptions,
) -> Result<usize, Error> {
    let ends_early = || Error::EndsEarly { culprit: last.culprit(), short_by: min_len - len };
    let end = from.add(len as u64).0.next_multiple_of(I::ALIGNMENT);
    let room = CodeAddr(end).displacement_from(from) as usize;
    if !options.allow_padding || min_len > room {
        return Err(ends_early());
    }
    let mut padded = len;
    while padded < min_len {
        let rest = bytes.get(padded..).unwrap_or_default();
        let inst = I::decode_behind(&[], from.add(padded as u64), rest).ok().filter(I::is_padding);
        padded += inst.ok_or_else(ends_early)?.len();
    }
    // A `nop` that crosses the boundary is no padding of this function alone.
    if padded > room { Err(ends_early()) } else { Ok(min_len) }
}
