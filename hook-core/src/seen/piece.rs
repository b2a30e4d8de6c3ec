//! Pieces of code, and what each of their instructions stands for.

use alloc::vec::Vec;

use grapnel_relocator::{CodeAddr, Isa, Relocated};

use crate::{
    HookPlan,
    arena::CodeSlot,
    native::{self, LinkKind, StubKind},
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
    /// Registers, by their numbers in DWARF, whose values are kept on the stack, each this many bytes below the real stack
    /// pointer.
    pub(crate) kept: [Option<(u8, u32)>; 2],
}

/// The frames of an island, which is run in place of the function's first instruction, or of the probed one, and leaves all
/// as it is in front of that. What it undoes first was done by the function's first instruction.
fn island(offset: usize, plan: &HookPlan) -> impl Iterator<Item = Frame> {
    let frame = |offset, of| Frame { offset, of, stack: Stack::default() };
    let done = (!plan.undo.is_empty()).then(|| frame(offset, plan.site));
    done.into_iter().chain([frame(offset + plan.undo.len(), plan.target)])
}

/// Code that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) slot: CodeSlot,
    pub(crate) kind: Kind,
    pub(crate) isa: Isa,
    /// The hooked function, or the probed instruction.
    pub(crate) target: CodeAddr,
    /// Ascending, the first at 0.
    pub(crate) frames: Vec<Frame>,
}

impl Piece {
    /// Relocated code behind a landing pad, or behind what ends a probe, and what follows it. The first `ahead` bytes are run in
    /// front of the function's first instruction, and leave the stack as it is.
    pub(crate) fn trampoline(
        slot: CodeSlot,
        plan: &HookPlan,
        at: StubKind,
        ahead: usize,
        moved: &Relocated,
    ) -> Self {
        let (target, pad) = (plan.target, ahead + plan.preamble.len());
        let mut frames = Vec::new();
        if ahead > 0 {
            frames.push(Frame { offset: 0, of: target, stack: Stack::default() });
        }
        if pad > ahead {
            frames.push(Frame { offset: ahead, of: target, stack: native::stack_of_preamble(at) });
        }
        let map = moved.map();
        let mut next = map.iter().map(|(_, to)| to).skip(1);
        for (from, to) in map.iter() {
            let end = next.next().unwrap_or(map.code_len());
            let code = moved.bytes().get(to..end).unwrap_or(&[]);
            native::stack_within(code, &mut |at, stack| {
                frames.push(Frame { offset: pad + to + at, of: plan.site.add(from as u64), stack });
            });
        }
        // An island behind all this leads away from the function's start.
        let end = pad + moved.bytes().len();
        if end < slot.len {
            frames.extend(island(end, plan));
        }
        Self { slot, kind: Kind::Trampoline, isa: plan.isa, target, frames }
    }

    /// An island.
    pub(crate) fn island(slot: CodeSlot, plan: &HookPlan) -> Self {
        Self {
            slot,
            kind: Kind::Island,
            isa: plan.isa,
            target: plan.target,
            frames: island(0, plan).collect(),
        }
    }

    /// A stub that goes where its word says.
    pub(crate) fn jump_stub(slot: CodeSlot, at: StubKind, target: CodeAddr) -> Self {
        Self::stub(slot, target, |each| native::stack_of_jump_stub(at, each))
    }

    /// The stub of a listener or a probe.
    pub(crate) fn link_stub(slot: CodeSlot, kind: LinkKind, target: CodeAddr) -> Self {
        Self::stub(slot, target, |each| native::stack_of_link_stub(kind, each))
    }

    fn stub(slot: CodeSlot, target: CodeAddr, stacks: impl FnOnce(&mut dyn FnMut(usize, Stack))) -> Self {
        let mut frames = Vec::new();
        stacks(&mut |offset, stack| frames.push(Frame { offset, of: target, stack }));
        Self { slot, kind: Kind::Stub, isa: native::STUBS, target, frames }
    }
}
