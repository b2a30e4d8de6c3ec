//! Which registers hold nothing at a place.
//!
//! A register is *live* at a place if some path from there reads it before it is overwritten. With `reads` and `writes`
//! of the instruction at `p`:
//!
//! ```text
//! live(p) = reads(p) | (live of all places behind p) & !writes(p)
//! ```
//!
//! The smallest sets that fulfil this are found by going over the code in sight until nothing changes. A path that
//! leaves the code in sight reads everything, but for what the ABI says of the place it leaves at.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    aarch64::{Effects, Exclusive, Flow, INST_LEN, Inst, LINK, RegisterMask, ZERO_OR_SP, decode},
};

use super::{MAX_WORDS, plan::Base};
use crate::WindowOptions;

/// How many instructions are looked at at most, the window's among them.
const SIGHT: usize = 512;

const ALL: RegisterMask = (1 << ZERO_OR_SP) - 1;

/// X16 and X17, which linkers' veneers may change on the way to any function (AAPCS64, 6.1.1).
const VENEERS: RegisterMask = 1 << 16 | 1 << 17;

/// X9 to X17, which hold nothing where a function is entered or left (AAPCS64, 6.1.1).
const TEMPORARY: RegisterMask = 0x3fe00;

/// X0 to X17: what no function has to keep, and nobody finds a caller by.
const CALLER_SAVED: RegisterMask = 0x3ffff;

/// What a kernel reads in a system call: X0 to X8, and X16, where Darwin has the number.
const SYSCALL: RegisterMask = 0x1ff | 1 << 16;

/// In the order of preference. A `br` through X16 or X17 is let in by the landing pads of calls, one through any other
/// register only by those of jumps (DDI 0487, D8.4.7). X18 is the platform's, X29 is what stacks are walked by.
const CANDIDATES: [u8; 29] = [
    17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, LINK, 28, 27, 26, 25, 24, 23, 22, 21, 20,
    19,
];

/// What is kept of a function to look through once a register is needed. Decoding it takes longer than all the rest of a
/// relocation, and code that stays nearby needs none.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Ahead {
    bytes: ArrayVec<u8, { SIGHT * INST_LEN }>,
    extent: Option<usize>,
    entry: bool,
}

impl Ahead {
    /// Of the function whose bytes from the window's start on are these.
    pub(super) fn new(bytes: &[u8], options: WindowOptions) -> Self {
        let WindowOptions { extent, entry, .. } = options;
        let len = bytes.len().min(extent.unwrap_or(usize::MAX)).min(SIGHT * INST_LEN);
        Self { bytes: copied(&bytes[..len]), extent, entry }
    }

    /// There are no more instructions than that.
    fn is_within(&self, words: usize) -> bool {
        self.bytes.len() <= words * INST_LEN
    }
}

impl Clone for Ahead {
    fn clone(&self) -> Self {
        Self { bytes: copied(&self.bytes), ..*self }
    }
}

/// All at once, which collecting them is not. There are no more than there is room for.
fn copied(bytes: &[u8]) -> ArrayVec<u8, { SIGHT * INST_LEN }> {
    ArrayVec::try_from(bytes).unwrap_or_default()
}

/// The registers that hold nothing at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Dead {
    /// The code in sight overwrites them before it reads them.
    shown: RegisterMask,
    /// So says the ABI, for that code passes a call or a return, or the function's entry.
    abi: RegisterMask,
}

impl Dead {
    fn choose(mask: RegisterMask) -> Option<u8> {
        CANDIDATES.into_iter().find(|register| mask >> register & 1 == 1)
    }

    /// For the way to this place: what the code shows goes before what the ABI says, and X16 and X17 before others.
    fn for_branch(self) -> Option<u8> {
        let any = self.shown | self.abi;
        [self.shown & VENEERS, self.shown & CALLER_SAVED, any & VENEERS, any]
            .into_iter()
            .find_map(Self::choose)
    }
}

/// The registers that hold nothing, place by place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Free {
    /// Behind each instruction of the window.
    behind: ArrayVec<Dead, MAX_WORDS>,
    /// Where each branches to.
    target: ArrayVec<Dead, MAX_WORDS>,
    /// At the window's end.
    resume: Dead,
    /// Whether a store may be added before each.
    may_store: ArrayVec<bool, MAX_WORDS>,
}

impl Free {
    /// What is known at the places of a window that is `len` bytes long.
    pub(super) fn find(code: &[Inst], from: CodeAddr, len: usize, ahead: &Ahead) -> Self {
        // Most find one at once, and need not pay for the room that a longer look takes.
        let near = Self::look::<32>(code, from, len, ahead);
        if near.is_enough(code) || ahead.is_within(32) {
            return near;
        }
        let further = Self::look::<128>(code, from, len, ahead);
        if further.is_enough(code) || ahead.is_within(128) {
            return further;
        }
        Self::look::<SIGHT>(code, from, len, ahead)
    }

    /// There is a register for all that may need one.
    fn is_enough(&self, code: &[Inst]) -> bool {
        let exits = code.last().is_some_and(|last| last.flow().is_exit());
        let target = |number: usize| match code[number].flow() {
            Flow::Jump { .. } | Flow::Cond { .. } => self.at_target(number).is_some(),
            _ => true,
        };
        let base = |number: usize| {
            code[number].operand().is_none_or(|operand| operand.access() == 0)
                || self.base(number) != Base::Missing
        };
        (exits || self.for_resume().is_some()) && (0..code.len()).all(|number| target(number) && base(number))
    }

    /// The same, from no more than the first `WORDS` instructions.
    fn look<const WORDS: usize>(code: &[Inst], from: CodeAddr, len: usize, ahead: &Ahead) -> Self {
        let sight = Sight::<WORDS>::new(code, from, ahead);
        let live = sight.live();
        let at_start = live.first().map_or(0, |live| live.used);
        let own_convention = at_start & TEMPORARY != 0 || sight.pushes_scratch();
        let changed = code.iter().map(|inst| inst.effects().changes).fold(0, |all, one| all | one);
        let entered = if ahead.entry && !own_convention { TEMPORARY & !changed } else { 0 };
        // Behind a function's entry there is assembly that passes values in any register to functions of its own: a
        // register that it names is not taken on the ABI's word.
        let passed = if ahead.entry { 0 } else { sight.named() };
        let dead = |place: Live| Dead {
            shown: ALL & !place.shown,
            abi: entered & !place.used
                | if own_convention { ALL & !place.shown } else { ALL & !place.by_abi & !passed },
        };
        let at = |addr: CodeAddr| sight.index(addr).map(|index| dead(live[index]));
        let nothing_seen = Dead { shown: 0, abi: entered };
        let target = |inst: &Inst| match inst.flow() {
            Flow::Jump { target } => at(target).unwrap_or(match sight.leaves(target) {
                true => Dead { shown: 0, abi: entered | VENEERS },
                false => nothing_seen,
            }),
            Flow::Cond { target, .. } => at(target).unwrap_or(nothing_seen),
            _ => Dead::default(),
        };
        let exclusive = |number: usize| sight.may_store(number);
        Self {
            behind: code.iter().map(|inst| at(inst.next()).unwrap_or(nothing_seen)).collect(),
            target: code.iter().map(target).collect(),
            resume: at(from.add(len as u64)).unwrap_or(nothing_seen),
            may_store: code
                .iter()
                .map(|inst| exclusive(inst.addr().displacement_from(from) as usize / INST_LEN))
                .collect(),
        }
    }

    /// A register for the jump back.
    pub(super) fn for_resume(&self) -> Option<u8> {
        self.resume.for_branch()
    }

    /// A register for the way to where an instruction branches to.
    pub(super) fn at_target(&self, number: usize) -> Option<u8> {
        self.target[number].for_branch()
    }

    /// What can hold the address of the literal that an instruction loads, which names no general register itself.
    pub(super) fn base(&self, number: usize) -> Base {
        let dead = self.behind[number];
        if let Some(register) = Dead::choose(dead.shown) {
            Base::Free(register)
        } else if self.may_store[number] {
            Base::Spilled(CANDIDATES[0])
        } else {
            Dead::choose(dead.abi).map_or(Base::Missing, Base::Free)
        }
    }
}

/// The registers in the four places where instructions have their numbers: Rd or Rt, Rn, Ra or Rt2, and Rm (DDI 0487,
/// C4.1).
fn named_by(word: u32) -> RegisterMask {
    [0, 5, 10, 16].iter().fold(0, |named, place| named | 1 << (word >> place & 31)) & ALL
}

/// What is live at a place, under three views of the paths that leave the code in sight.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Live {
    /// They read everything.
    shown: RegisterMask,
    /// They read what the ABI lets them read.
    by_abi: RegisterMask,
    /// They read nothing: only what the code in sight reads itself counts.
    used: RegisterMask,
}

impl Live {
    const UNSEEN: Self = Self { shown: ALL, by_abi: ALL, used: 0 };

    fn union(self, other: Self) -> Self {
        Self {
            shown: self.shown | other.shown,
            by_abi: self.by_abi | other.by_abi,
            used: self.used | other.used,
        }
    }

    /// Before an instruction, if this is behind it.
    fn before(self, Effects { reads, writes, .. }: Effects) -> Self {
        let before = |behind: RegisterMask| reads | behind & !writes;
        Self { shown: before(self.shown), by_abi: before(self.by_abi), used: before(self.used) }
    }
}

/// The code that can be looked at: the window and what follows it.
struct Sight<const WORDS: usize> {
    from: CodeAddr,
    /// Words that are no instructions stay words. Constants of the window are read as instructions too: nothing leads to
    /// them.
    code: ArrayVec<Result<Inst, u32>, WORDS>,
    extent: Option<usize>,
    /// The window is at the function's entry, so the function has nothing before it.
    entry: bool,
}

impl<const WORDS: usize> Sight<WORDS> {
    fn new(window: &[Inst], from: CodeAddr, ahead: &Ahead) -> Self {
        let words = ahead.bytes.chunks_exact(INST_LEN).take(WORDS).enumerate();
        let code = words.map(|(number, word)| {
            let at = from.add((number * INST_LEN) as u64);
            let known = window.get(number).filter(|inst| inst.addr() == at);
            let unknown = |_| word.first_chunk().map_or(0, |&word| u32::from_le_bytes(word));
            known.map_or_else(|| decode(at, word).map_err(unknown), |&inst| Ok(inst))
        });
        Self { from, code: code.collect(), extent: ahead.extent, entry: ahead.entry }
    }

    fn index(&self, addr: CodeAddr) -> Option<usize> {
        let len = self.code.len() * INST_LEN;
        addr.offset_within(self.from, len as u64).map(|offset| offset as usize / INST_LEN)
    }

    /// The target is in another function for sure.
    fn leaves(&self, target: CodeAddr) -> bool {
        let before = target < self.from;
        let outside = |extent: usize| target.offset_within(self.from, extent as u64).is_none();
        self.extent.is_some_and(|extent| if before { self.entry } else { outside(extent) })
    }

    /// The registers that some instruction in sight reads or changes.
    fn named(&self) -> RegisterMask {
        let effects = self.code.iter().flatten().map(Inst::effects);
        effects.fold(0, |named, Effects { reads, changes, .. }| named | reads | changes)
    }

    fn pushes_scratch(&self) -> bool {
        self.code.iter().flatten().any(Inst::pushes_scratch)
    }

    /// A store between an exclusive load and its store may end the sequence (DDI 0487, B2.12.5).
    fn may_store(&self, number: usize) -> bool {
        let part = |inst: &Result<Inst, u32>| inst.as_ref().ok().and_then(Inst::exclusive);
        let number = number.min(self.code.len());
        let before = self.code[..number].iter().rev().find_map(part);
        let after = self.code[number..].iter().find_map(part);
        before != Some(Exclusive::Load) && after != Some(Exclusive::Store)
    }

    /// What is live before each instruction.
    fn live(&self) -> ArrayVec<Live, WORDS> {
        let mut live: ArrayVec<Live, WORDS> = self.code.iter().map(|_| Live::default()).collect();
        loop {
            // Backwards, so that only a branch backwards can have used what has changed since.
            let (mut changed, mut backwards) = (false, false);
            for number in (0..self.code.len()).rev() {
                let before = self.before(number, &live, &mut backwards);
                changed |= live[number] != before;
                live[number] = before;
            }
            if !changed || !backwards {
                return live;
            }
        }
    }

    fn before(&self, number: usize, live: &[Live], backwards: &mut bool) -> Live {
        let next = live.get(number + 1).copied().unwrap_or(Live::UNSEEN);
        let inst = match &self.code[number] {
            Ok(inst) => inst,
            // It may be an instruction of a newer processor, and go on behind it.
            &Err(word) => return Live { used: next.used | named_by(word), ..Live::UNSEEN },
        };
        let effects = inst.effects();
        let mut at = |target: CodeAddr| {
            let index = self.index(target)?;
            *backwards |= index <= number;
            Some(live[index])
        };
        let all_but = |by_abi: RegisterMask| Live { shown: ALL, by_abi: ALL & !by_abi, used: 0 };
        match inst.flow() {
            Flow::Next => next.before(effects),
            // That X16 is read is no sign of a convention of the function's own.
            Flow::Syscall => {
                let all = next.before(Effects { reads: SYSCALL, ..effects });
                Live { used: next.used | SYSCALL & !TEMPORARY, ..all }
            }
            Flow::Jump { target } => match at(target) {
                Some(there) => there,
                None if self.leaves(target) => all_but(VENEERS),
                None => Live::UNSEEN,
            },
            Flow::Cond { target, .. } => at(target).unwrap_or(Live::UNSEEN).union(next).before(effects),
            // It asks for its address.
            Flow::Call { target } if target == inst.next() => next.before(effects),
            Flow::Call { target } => {
                let own = self.index(target).is_some() || self.extent.is_some() && !self.leaves(target);
                all_but(if own { 0 } else { VENEERS }).before(effects)
            }
            // The resolver of a TLS descriptor is called like this and keeps X16 and X17.
            Flow::CallIndirect => all_but(0).before(effects),
            Flow::Return => all_but(TEMPORARY).before(effects),
            // It may go on behind it.
            Flow::Breakpoint | Flow::Unsupported(_) => {
                Live { used: next.used, ..Live::UNSEEN }.before(effects)
            }
            Flow::JumpIndirect | Flow::Undefined => Live::UNSEEN.before(effects),
        }
    }
}
