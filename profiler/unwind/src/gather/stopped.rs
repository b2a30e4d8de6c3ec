//! Walks past the frames of signals: from a handler to what was stopped, and on.
//!
//! What a signal stopped is known to the last register, so the kernel's frame takes nothing but its memory; the instruction at which it was stopped has a rule of
//! its own, which isn't that of a return to there. From its caller on, the stack is one like any other, and its walk is remembered as such: while
//! handlers come and go, they find it again. On another stack it is walked without the last one, with a question for each page.

use super::{Gathered, Gatherer, guessed_end, root};
use crate::cache::Known;
use crate::memo::MemoEnd;
use crate::native::{
    FramePointer, FullState, Registers, RuleKind, STOPPED_HAVE_RULES, is_data, step, step_by_guess,
};
use crate::resolve::Resolver;
use crate::start::{Cursor, Start};
use crate::tree::{FrameFlags, Interner, NodeId, Sink};
use crate::walker::End;

/// The most frames of handlers that are walked apart from the rest.
pub(super) const MOST_BEFORE: usize = 64;

/// Where a walk by rules has come to.
enum Reached {
    /// The caller of what a signal stopped: the frames before it are in the path.
    Caller(Cursor),
    End(MemoEnd),
    /// A frame that takes more registers than rules follow.
    Full,
}

/// A frame as a start. Of its other registers nothing is known.
struct From(Cursor);

impl Start for From {
    fn pc(&self) -> u64 {
        self.0.pc
    }

    fn sp(&self) -> u64 {
        self.0.sp
    }

    fn fp(&self) -> u64 {
        self.0.fp
    }

    fn registers(&self) -> Registers {
        Registers::default()
    }
}

impl Gatherer {
    /// A walk on which a frame is that fast rules don't leave, most often a signal's.
    #[cold]
    #[inline(never)]
    pub(super) fn past_signals(
        &mut self,
        start: &impl Start,
        resolver: &mut impl Resolver,
        tree: &mut Interner<'_, impl Sink>,
    ) -> NodeId {
        if let Reached::Caller(caller) = self.by_rules(start, false, resolver)
            // On the handler's own stack, which is there.
            && self.stack.range_at(caller.sp).is_some()
            && self.path.len() < MOST_BEFORE
        {
            self.before.take_frames(&self.path);
            if let Some(node) = self.memoised_once_more(&From(caller), resolver, tree)
                && self.last_end != End::Depth
                && self.memo.len() + self.before.len() <= self.max_frames
                // Otherwise its length isn't known.
                && self.memo.len() != 0
            {
                return self.before.intern(node, tree);
            }
        }
        self.memo.forget();
        self.past_signals_unmemoised(start, resolver, tree)
    }

    /// As [`Self::past_signals`], without the last walk.
    #[cold]
    #[inline(never)]
    pub(super) fn past_signals_unmemoised(
        &mut self,
        start: &impl Start,
        resolver: &mut impl Resolver,
        tree: &mut Interner<'_, impl Sink>,
    ) -> NodeId {
        let Reached::End(end) = self.by_rules(start, true, resolver) else {
            return self.by_cfi(start.registers(), resolver, tree);
        };
        self.heed(end);
        self.last_end = end.into();
        let parent = root(end, tree);
        self.intern(parent, tree)
    }

    /// What is known of a frame that a signal stopped at `pc`, which isn't what is known of a return to there.
    fn known_of_stopped(&mut self, pc: u64, resolver: &mut impl Resolver) -> Known {
        if self.stopped.0 == pc {
            return self.stopped.1;
        }
        let known = Known::new(resolver.rule(pc, false));
        // As in the cache.
        if !known.rule.is(RuleKind::NotCode) {
            self.stopped = (pc, known);
        }
        known
    }

    /// Walks by rules, without the last walk: `whole`, or as far as what the first signal stopped.
    fn by_rules(&mut self, start: &impl Start, whole: bool, resolver: &mut impl Resolver) -> Reached {
        let (mut pc, mut sp, mut fp) = (start.pc(), start.sp(), FramePointer::known(start.fp()));
        // All registers of a frame that a signal stopped.
        let mut stopped: Option<FullState> = None;
        self.path.clear();
        self.rest_is_unknown();
        self.stack.begin(sp);
        loop {
            let is_stopped = stopped.is_some();
            let known = match self.cache.get(pc).filter(|_| !is_stopped) {
                Some(entry) => self.cache.known(entry),
                None if is_stopped => self.known_of_stopped(pc, resolver),
                None => self.miss(pc, resolver),
            };
            let Known { rule, module } = known;
            if !fp.settle(&mut self.stack, &mut self.path.words) {
                return Reached::End(MemoEnd::Open);
            }
            let at = Cursor { pc, sp, fp: fp.value() };
            let is_none = rule.is(RuleKind::NotCode) && self.path.len() != 0;
            if is_none || (!is_stopped && rule.is_guess() && module == 0 && is_data(at, &self.stack)) {
                return Reached::End(MemoEnd::Open);
            }
            if self.path.len() == self.max_frames {
                return Reached::End(MemoEnd::Depth);
            }
            let exact = if is_stopped { FrameFlags::EXACT } else { FrameFlags::NONE };
            if rule.is_signal() {
                self.path.push(at, module, exact | FrameFlags::SIGNAL, false);
                let Some(mut state) = FullState::stopped(sp, &mut self.stack) else {
                    return Reached::End(MemoEnd::Open);
                };
                if state.pc() == 0 {
                    self.stack.ends(sp);
                    return Reached::End(MemoEnd::Root);
                }
                state.set_pc(resolver.stopped(state.pc()));
                let caller = state.cursor();
                (pc, sp, fp) = (caller.pc, caller.sp, FramePointer::known(caller.fp));
                stopped = Some(state);
                continue;
            }
            let has_fast_rule = !rule.is(RuleKind::Full) && !rule.is_guess() && !rule.is(RuleKind::NotCode);
            if let Some(mut state) = stopped.take()
                && !(STOPPED_HAVE_RULES && has_fast_rule)
            {
                let stepped = resolver.step(&mut state, &mut self.stack);
                self.path.push(at, stepped.module_id, stepped.flags, false);
                if let Some(end) = self.ends_at(stepped, sp) {
                    return Reached::End(end);
                }
                let caller = state.cursor();
                (pc, sp, fp) = (caller.pc, caller.sp, FramePointer::known(caller.fp));
                if state.is_exact() {
                    stopped = Some(state);
                } else if !whole {
                    return Reached::Caller(caller);
                }
                continue;
            }
            if rule.is_guess() {
                self.path.push(at, module, FrameFlags::GUESS, false);
                match step_by_guess(rule, at, &mut self.stack, &mut self.path.words) {
                    Some(caller) if caller.pc != 0 => {
                        (pc, sp, fp) = (caller.pc, caller.sp, FramePointer::known(caller.fp));
                    }
                    Some(_) => return Reached::End(guessed_end(module)),
                    None => return Reached::End(MemoEnd::Open),
                }
                continue;
            }
            self.path.push(at, module, exact, false);
            let Some(caller) = step(rule, sp, &mut fp, &mut self.stack, &mut self.path.words) else {
                return match self.stopped_at(rule) {
                    Gathered::Done { end, .. } => Reached::End(end),
                    Gathered::Full => Reached::Full,
                };
            };
            if caller.0 == 0 {
                self.stack.ends(sp);
                return Reached::End(MemoEnd::Root);
            }
            (pc, sp) = caller;
            if is_stopped && !whole {
                if !fp.settle(&mut self.stack, &mut self.path.words) {
                    return Reached::End(MemoEnd::Open);
                }
                return Reached::Caller(Cursor { pc, sp, fp: fp.value() });
            }
        }
    }
}
