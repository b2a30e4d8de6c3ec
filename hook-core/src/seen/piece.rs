//! Pieces of code, and what each of their instructions stands for.

use alloc::vec::Vec;

use grapnel_relocator::{CodeAddr, Relocated};

use crate::{
    arena::CodeSlot,
    native::{self, LinkKind},
};

/// What a piece of code is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Trampoline,
    Stub,
    Island,
}

impl Kind {
    /// What it is called behind the function's name.
    pub(crate) fn text(self) -> &'static [u8] {
        match self {
            Self::Trampoline => b" [grapnel trampoline]",
            Self::Stub => b" [grapnel stub]",
            Self::Island => b" [grapnel island]",
        }
    }
}

/// From this offset on, the code stands for an instruction of the hooked function: a thread that is here is, to whoever
/// asks, at that instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) offset: usize,
    /// Where the instruction is.
    pub(crate) of: CodeAddr,
    pub(crate) stack: Stack,
}

/// How the registers differ from what they are in front of the instruction that the code stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stack {
    /// How many bytes lower the stack pointer is.
    pub(crate) below: u32,
    /// A register, by its number in DWARF, whose value is kept on the stack, this many bytes below the real stack pointer.
    pub(crate) kept: Option<(u8, u32)>,
}

/// Code that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) slot: CodeSlot,
    pub(crate) kind: Kind,
    /// The hooked function, or the probed instruction.
    pub(crate) target: CodeAddr,
    /// Ascending, the first at 0.
    pub(crate) frames: Vec<Frame>,
}

impl Piece {
    /// Relocated code behind a landing pad, and what follows it.
    pub(crate) fn trampoline(
        slot: CodeSlot,
        target: CodeAddr,
        site: CodeAddr,
        pad: usize,
        moved: &Relocated,
    ) -> Self {
        let mut frames = Vec::new();
        if pad > 0 {
            frames.push(Frame { offset: 0, of: target, stack: Stack::default() });
        }
        let map = moved.map();
        let mut next = map.iter().map(|(_, to)| to).skip(1);
        for (from, to) in map.iter() {
            let end = next.next().unwrap_or(map.code_len());
            let code = moved.bytes().get(to..end).unwrap_or(&[]);
            native::stack_within(code, &mut |at, stack| {
                frames.push(Frame { offset: pad + to + at, of: site.add(from as u64), stack });
            });
        }
        // An island behind all this leads away from the function's start.
        let end = pad + moved.bytes().len();
        if end < slot.len {
            frames.push(Frame { offset: end, of: target, stack: Stack::default() });
        }
        Self { slot, kind: Kind::Trampoline, target, frames }
    }

    /// Code that is run in place of the function's first instruction, or of the probed one, and leaves all as it is.
    pub(crate) fn jump(slot: CodeSlot, kind: Kind, target: CodeAddr) -> Self {
        let frames = [Frame { offset: 0, of: target, stack: Stack::default() }].into();
        Self { slot, kind, target, frames }
    }

    /// The stub of a listener or a probe.
    pub(crate) fn link(slot: CodeSlot, kind: LinkKind, target: CodeAddr) -> Self {
        let mut frames = Vec::new();
        native::stack_of_link_stub(kind, &mut |offset, stack| {
            frames.push(Frame { offset, of: target, stack });
        });
        Self { slot, kind: Kind::Stub, target, frames }
    }
}
