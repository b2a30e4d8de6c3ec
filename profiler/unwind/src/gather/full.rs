//! The walks that have nothing of the last one: of all frames by full steps, and by another unwinder.

use super::{Gatherer, guessed_end, keep, root};
use crate::backtrace::Backtrace;
use crate::cache::Known;
use crate::memo::MemoEnd;
use crate::native::{FullState, Registers, plain};
use crate::resolve::{FullStep, Outcome, Resolver};
use crate::start::{Cursor, Start};
use crate::tree::{FrameFlags, Interner, NodeId, Sink};
use crate::walker::End;

impl Gatherer {
    /// How a walk ends with a full step from the frame at this stack pointer, if it does.
    pub(super) fn ends_at(&mut self, stepped: FullStep, sp: u64) -> Option<MemoEnd> {
        match stepped.outcome {
            Outcome::Next => None,
            Outcome::Root if stepped.flags.contains(FrameFlags::GUESS) => {
                Some(guessed_end(stepped.module_id))
            }
            Outcome::Root => {
                self.stack.ends(sp);
                Some(MemoEnd::Root)
            }
            Outcome::Stuck | Outcome::NotCode => Some(MemoEnd::Open),
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn by_backtrace(
        &mut self,
        first: u64,
        backtrace: &Backtrace,
        resolver: &mut impl Resolver,
        tree: &mut Interner<'_, impl Sink>,
    ) -> NodeId {
        let Self { path, cache, chains, max_frames, .. } = self;
        path.clear();
        self.last_end = backtrace.frames(plain(first), |pc, exact| {
            let more = path.len() < *max_frames;
            if more {
                let flags = if exact { FrameFlags::EXACT } else { FrameFlags::NONE };
                path.push(Cursor { pc, sp: 0, fp: 0 }, 0, flags, false);
            }
            more
        });
        path.set_modules(|pc| match cache.get(pc) {
            Some(entry) => cache.known(entry).module,
            None => {
                let known = Known::new(resolver.rule(pc, true));
                keep(cache, chains, pc, known);
                known.module
            }
        });
        let end = match self.last_end {
            End::Root => MemoEnd::Root,
            End::Depth => MemoEnd::Depth,
            End::Open => MemoEnd::Open,
        };
        let parent = root(end, tree);
        self.intern(parent, tree)
    }

    /// Walks all frames by full steps.
    #[cold]
    #[inline(never)]
    pub(crate) fn by_cfi(
        &mut self,
        registers: Registers,
        resolver: &mut impl Resolver,
        tree: &mut Interner<'_, impl Sink>,
    ) -> NodeId {
        self.path.clear();
        self.rest_is_unknown();
        self.stack.begin(registers.sp());
        let mut state = FullState::new(&registers);
        let end = loop {
            let at = Cursor { pc: state.pc(), sp: state.sp(), fp: 0 };
            let before = self.path.len();
            if before == self.max_frames {
                // The frame counts only if it is one.
                let next = resolver.step(&mut state, &mut self.stack);
                break if next.outcome == Outcome::NotCode { MemoEnd::Open } else { MemoEnd::Depth };
            }
            let stepped = resolver.step(&mut state, &mut self.stack);
            if stepped.outcome != Outcome::NotCode || before == 0 {
                self.path.push(at, stepped.module_id, stepped.flags, false);
            }
            if let Some(end) = self.ends_at(stepped, at.sp) {
                break end;
            }
        };
        self.heed(end);
        self.last_end = end.into();
        let parent = root(end, tree);
        self.intern(parent, tree)
    }
}
