//! Gathering the frames of a walk: from what is remembered, by cached rules, or by full steps.

#[cfg(target_arch = "x86_64")]
mod again;
mod full;
mod stopped;

use crate::Error;
use crate::cache::{Known, RuleCache};
use crate::chain::{Chains, FRAMES};
use crate::deep::Deep;
use crate::memo::{Memo, MemoEnd, Path};
use crate::native::{FramePointer, PackedRule, RuleKind, is_data, step, step_by_guess};
use crate::recent::Recent;
use crate::resolve::Resolver;
use crate::stack::StackMemory;
use crate::start::{Cursor, Start};
use crate::tree::{Frame, FrameFlags, FrameKey, Interner, NodeId, Sink};
use crate::walker::{Config, End};

/// Everything of a walker but the tree. What the commonest walk needs comes first, in as few cache lines as it takes.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Gatherer {
    /// What the next walk may go on with from the last one.
    #[cfg(target_arch = "x86_64")]
    going: again::Going,
    chains: Chains,
    /// The most frames of a stack.
    max_frames: usize,
    tells: bool,
    last_end: End,
    recent: Recent,
    memo: Memo,
    cache: RuleCache,
    /// The chain of a frame behind the end of another one.
    further: usize,
    /// Where the words begin whose callers weren't asked for in this walk.
    expected: u64,
    stack: StackMemory,
    path: Path,
    deep: Deep,
    /// The most frames of a walk now, no fewer: that of `deep`, beside what each walk reads.
    limit: usize,
    /// Frames between the leaf and what a signal stopped.
    before: Path,
    /// Where a signal stopped the thread last, and what is known of that; 0 for nothing.
    stopped: (u64, Known),
}

/// What gathering frames by fast rules came to.
enum Gathered {
    /// `path` holds the frames from the leaf to those that the memo has first, of which so many hold.
    Done { kept: usize, end: MemoEnd },
    /// A frame needs a full step.
    Full,
}

impl Gatherer {
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        const MOST_FRAMES: usize = 1 << 16;
        let max_frames = config.max_frames.clamp(1, MOST_FRAMES);
        Ok(Gatherer {
            cache: RuleCache::new(config.cache_bits.clamp(6, 20))?,
            chains: Chains::new(config.chain_bits)?,
            further: 0,
            expected: 0,
            stack: StackMemory::new(),
            path: Path::new(max_frames)?,
            memo: Memo::new(max_frames)?,
            recent: Recent::new(if config.recent_bits == 0 { 0 } else { config.recent_bits.clamp(8, 20) })?,
            deep: Deep::new(max_frames, config.kept_frames.min(MOST_FRAMES)),
            max_frames,
            limit: max_frames,
            tells: config.tells,
            #[cfg(target_arch = "x86_64")]
            going: again::Going::default(),
            last_end: End::Open,
            before: Path::new(stopped::MOST_BEFORE)?,
            stopped: (0, Known::default()),
        })
    }

    /// How the last walk ended.
    pub(crate) fn last_end(&self) -> End {
        self.last_end
    }

    /// Asks the processor for what a walk will read first.
    #[inline(always)]
    pub(crate) fn expect(&self, start: &impl Start) {
        self.recent.expect(start.pc(), start.sp());
        self.chains.expect(self.chains.of(start.pc(), start.sp()));
    }

    /// Forgets rules, and walks that went by them.
    pub(crate) fn forget_rules(&mut self) {
        self.rest_is_unknown();
        self.cache.clear();
        self.chains.forget();
        self.memo.forget();
        self.recent.forget();
        self.stopped.0 = 0;
    }

    /// Forgets what has nodes.
    pub(crate) fn forget_nodes(&mut self) {
        self.rest_is_unknown();
        self.memo.forget();
        self.recent.forget();
        self.deep.forget();
    }

    /// Forgets what is readable, and what was read.
    pub(crate) fn forget_stacks(&mut self) {
        self.rest_is_unknown();
        self.stack.forget();
        self.memo.forget();
        self.recent.forget();
    }

    pub(crate) fn own_stack(&mut self, addresses: core::ops::Range<u64>) {
        self.stack.own_stack(addresses);
    }

    /// The next walk doesn't simply go on from the last one.
    #[inline(always)]
    fn rest_is_unknown(&mut self) {
        #[cfg(target_arch = "x86_64")]
        {
            self.going = again::Going::default();
        }
    }

    /// The node of a recent walk, if that is what a walk would come to now.
    #[inline(always)]
    pub(crate) fn recent_walk(&mut self, start: &impl Start) -> Option<NodeId> {
        if !self.recent.is_asked() {
            return None;
        }
        let range = self.stack.range_at(start.sp())?;
        let node = self.recent.find(start.pc(), start.sp(), start.fp(), range)?;
        self.last_end = End::Root;
        Some(node)
    }

    /// Keeps the walk that the memo holds.
    #[inline(always)]
    fn remember(&mut self) {
        if self.recent.is_on() {
            self.keep_walk();
        }
    }

    #[inline(never)]
    fn keep_walk(&mut self) {
        if let Some((leaf, words, range)) = self.memo.whole() {
            self.recent.keep(leaf.leaf(), words, range);
        }
    }

    #[inline(never)]
    #[unsafe(link_section = ".text.hot.grapnel")]
    pub(crate) fn memoised(
        &mut self,
        start: &impl Start,
        resolver: &mut impl Resolver,
        tree: &mut Interner<'_, impl Sink>,
    ) -> NodeId {
        match self.memoised_by_rules(start, resolver, tree) {
            Some(node) => node,
            None => self.past_signals(start, resolver, tree),
        }
    }

    /// The same where fast rules lead to the end.
    #[inline(always)]
    fn memoised_by_rules(
        &mut self,
        start: &impl Start,
        resolver: &mut impl Resolver,
        tree: &mut Interner<'_, impl Sink>,
    ) -> Option<NodeId> {
        Some(match self.gather(start, self.memo.len(), self.limit, resolver) {
            Gathered::Full => return None,
            Gathered::Done { end: MemoEnd::Depth, .. }
                if self.deep.limit_was_met(&mut self.path, &mut self.memo) =>
            {
                self.limit = self.deep.limit();
                return self.memoised_once_more(start, resolver, tree);
            }
            Gathered::Done { kept, end }
                if kept + self.path.len() > self.max_frames || !self.memo.have_nodes(kept) =>
            {
                self.take_deep(kept, end, tree)
            }
            Gathered::Done { kept, end } => {
                self.last_end = end.into();
                let parent = match self.memo.last_of(kept) {
                    Some(record) => record.node,
                    None => root(end, tree),
                };
                self.memo.cut_to(kept);
                if self.path.len() == 0 {
                    // All of it was there.
                    #[cfg(target_arch = "x86_64")]
                    self.may_go_on();
                    self.remember();
                    return Some(parent);
                }
                let range = self.stack.range_of_walk();
                let Self { path, memo, tells, .. } = self;
                // Without a frame of the last walk it would have to tell the whole stack, each time anew where there is no such frame
                // ever: beyond the depth limit, or where the root isn't found.
                let leaf = if *tells && kept != 0 {
                    memo.tell_and_take(path, range.unwrap_or_default(), parent, tree)
                } else {
                    let leaf = path.intern(parent, tree);
                    memo.take(path, range.unwrap_or_default());
                    leaf
                };
                if range.is_none() {
                    self.memo.forget();
                }
                self.memo.end = end;
                self.heed(end);
                #[cfg(target_arch = "x86_64")]
                self.may_go_on();
                self.remember();
                leaf
            }
        })
    }

    /// As [`Self::memoised_by_rules`], amid another walk.
    #[cold]
    #[inline(never)]
    fn memoised_once_more(
        &mut self,
        start: &impl Start,
        resolver: &mut impl Resolver,
        tree: &mut Interner<'_, impl Sink>,
    ) -> Option<NodeId> {
        self.memoised_by_rules(start, resolver, tree)
    }

    /// Keeps a walk that is deeper than a stack may be, or that goes on from one that was. The node of its stack.
    #[cold]
    #[inline(never)]
    fn take_deep(&mut self, kept: usize, end: MemoEnd, tree: &mut Interner<'_, impl Sink>) -> NodeId {
        let range = self.stack.range_of_walk();
        let Self { path, memo, deep, max_frames, .. } = self;
        memo.cut_to(kept);
        memo.take_without_nodes(path, range.unwrap_or_default());
        memo.end = end;
        let new = path.len();
        path.clear();
        let node = if memo.len() > *max_frames {
            self.last_end = End::Depth;
            deep.node(memo, |memo| {
                memo.copy_to(memo.len(), memo.len() - *max_frames, path);
                path.intern(root(MemoEnd::Depth, tree), tree)
            })
        } else {
            self.last_end = end.into();
            let parent = memo.copy_without_nodes(path).unwrap_or_else(|| root(end, tree));
            let node = path.intern(parent, tree);
            memo.set_nodes(path);
            node
        };
        if !deep.walked(new) || range.is_none() {
            self.memo.forget();
        }
        self.heed(end);
        self.limit = self.deep.limit();
        node
    }

    pub(crate) fn unmemoised(
        &mut self,
        start: &impl Start,
        resolver: &mut impl Resolver,
        tree: &mut Interner<'_, impl Sink>,
    ) -> NodeId {
        match self.gather(start, 0, self.max_frames, resolver) {
            Gathered::Full => self.past_signals_unmemoised(start, resolver, tree),
            Gathered::Done { end, .. } => {
                self.last_end = end.into();
                self.heed(end);
                let parent = root(end, tree);
                #[cfg(target_arch = "x86_64")]
                self.may_go_on();
                self.intern(parent, tree)
            }
        }
    }

    /// A walk of new frames that has no root may have been led astray.
    #[inline(always)]
    fn heed(&mut self, end: MemoEnd) {
        if end == MemoEnd::Open {
            self.stack.doubt();
        }
    }

    /// The node of the path's frames below `parent`.
    fn intern(&mut self, parent: NodeId, tree: &mut Interner<'_, impl Sink>) -> NodeId {
        self.path.intern(parent, tree)
    }

    /// Gathers frames by fast rules. `left` is how many frames the memo has, or 0 for no use of it, and `limit` the most frames of
    /// the walk.
    #[inline(always)]
    fn gather(
        &mut self,
        start: &impl Start,
        mut left: usize,
        limit: usize,
        resolver: &mut impl Resolver,
    ) -> Gathered {
        // Scalars, so that they stay in registers: a cursor in memory is written by words and read by pairs.
        let (mut pc, mut sp, mut fp) = (start.pc(), start.sp(), FramePointer::known(start.fp()));
        self.path.clear();
        self.rest_is_unknown();
        self.stack.begin(sp);
        self.expected = 0;
        let chain = self.chains.of(pc, sp);
        let ended = |end| Gathered::Done { kept: 0, end };
        loop {
            // A caller's sp lies above its callee's in both walks, so one index moving to the root is enough. Where this walk comes to a
            // stack that lies lower, frames of the last one are passed over.
            while let Some(old) = self.memo.last_of(left) {
                if old.sp < sp {
                    left -= 1;
                    continue;
                }
                if !old.is_at(pc, sp) {
                    break;
                }
                let same = if old.ignores_fp() {
                    true
                } else if fp.settle(&mut self.stack, &mut self.path.words) {
                    old.fp == fp.value()
                } else {
                    return ended(MemoEnd::Open);
                };
                if same {
                    match self.reuse(left) {
                        Reuse::Rest(end) => return Gathered::Done { kept: left, end },
                        Reuse::Cut => return ended(MemoEnd::Depth),
                        Reuse::UpTo(changed) => {
                            self.memo.copy_to(left, changed, &mut self.path);
                            if let Some(frame) = self.memo.last_of(changed) {
                                (pc, sp) = (frame.pc, frame.sp);
                                // Where it is dead, it need not be what it was in the last walk.
                                fp = FramePointer::known(frame.fp);
                            }
                            left = changed - 1;
                        }
                    }
                }
                break;
            }
            let frame = self.path.len();
            let known = match self.chains.at(chain).and_then(|chain| chain.entry(frame, pc)) {
                Some(entry) => self.cache.known(entry),
                None => self.look_up(chain, frame, pc, sp, resolver),
            };
            let Known { rule, module } = known;
            let ignores_fp = rule.ignores_fp();
            if !ignores_fp {
                if rule.is(RuleKind::NotCode) && self.path.len() != 0 {
                    return ended(MemoEnd::Open);
                }
                if !fp.settle(&mut self.stack, &mut self.path.words) {
                    return ended(MemoEnd::Open);
                }
            }
            let at = Cursor { pc, sp, fp: fp.value() };
            if rule.is_guess() && module == 0 && is_data(at, &self.stack) {
                return ended(MemoEnd::Open);
            }
            if self.path.len() == limit {
                return ended(MemoEnd::Depth);
            }
            if rule.is_guess() {
                self.path.push(at, module, FrameFlags::GUESS, false);
                match step_by_guess(rule, at, &mut self.stack, &mut self.path.words) {
                    Some(caller) if caller.pc != 0 => {
                        (pc, sp) = (caller.pc, caller.sp);
                        fp = FramePointer::known(caller.fp);
                    }
                    Some(_) => return ended(guessed_end(module)),
                    None => return ended(MemoEnd::Open),
                }
                continue;
            }
            self.path.push(at, module, FrameFlags::NONE, ignores_fp);
            let Some(caller) = step(rule, sp, &mut fp, &mut self.stack, &mut self.path.words) else {
                return match self.stopped_at(rule) {
                    // Its stack was cut before it.
                    Gathered::Full if self.path.len() > self.max_frames => ended(MemoEnd::Open),
                    other => other,
                };
            };
            if caller.0 == 0 {
                self.stack.ends(sp);
                return ended(MemoEnd::Root);
            }
            (pc, sp) = caller;
        }
    }

    /// How much of the memo's first `left` frames holds, whose last is a frame of this walk too.
    #[inline(always)]
    fn reuse(&mut self, left: usize) -> Reuse {
        let new = self.path.len();
        let total = new + left;
        if total > self.max_frames && self.limit > self.max_frames {
            return self.reuse_deep(left);
        }
        let changed = self.memo.changed_at(left, left, &mut self.stack);
        let holds = left - changed.unwrap_or(0);
        let room = self.max_frames - new;
        if holds >= room && !(holds == left && total == self.max_frames) {
            // One frame more is known to exist, and is one too many.
            self.memo.copy_to(left, left - room, &mut self.path);
            return Reuse::Cut;
        }
        match (changed, self.memo.end) {
            (Some(changed), _) => Reuse::UpTo(changed),
            (None, MemoEnd::Root) => Reuse::Rest(MemoEnd::Root),
            (None, MemoEnd::Depth) if total == self.max_frames => Reuse::Rest(MemoEnd::Depth),
            // The last frame may have a caller now.
            (None, MemoEnd::Depth | MemoEnd::Open) => Reuse::UpTo(1),
        }
    }

    /// As [`Gatherer::reuse`], where the walk is deeper than a stack may be: what lies beyond the stack's frames may have changed.
    #[cold]
    #[inline(never)]
    fn reuse_deep(&mut self, left: usize) -> Reuse {
        let new = self.path.len();
        if new + left > self.limit {
            return Reuse::Cut;
        }
        let of = if self.memo.is_sure_in(self.stack.range()) {
            self.max_frames.saturating_sub(new).min(left)
        } else {
            left
        };
        match self.memo.changed_at(left, of, &mut self.stack) {
            Some(changed) => Reuse::UpTo(changed),
            None => Reuse::Rest(self.memo.end),
        }
    }

    /// What is known of a frame that isn't as it was in the last walk from that leaf. Behind the end of a chain there is that of the
    /// frame there.
    #[inline(never)]
    #[unsafe(link_section = ".text.hot.grapnel")]
    fn look_up(
        &mut self,
        mut chain: usize,
        mut frame: usize,
        pc: u64,
        sp: u64,
        resolver: &mut impl Resolver,
    ) -> Known {
        if self.chains.are_none() {
            return self.look_up_ahead(pc, sp, resolver);
        }
        if frame >= FRAMES {
            frame %= FRAMES;
            if frame == 0 {
                self.further = self.chains.of(pc, sp);
            }
            chain = self.further;
            if let Some(entry) = self.chains.at(chain).and_then(|chain| chain.entry(frame, pc)) {
                return self.cache.known(entry);
            }
        }
        if let Some(entry) = self.chains.entry_before(chain, frame, pc) {
            return self.cache.known(entry);
        }
        let Some(entry) = self.cache.get(pc) else { return self.miss(pc, resolver) };
        self.chains.set(chain, frame, entry);
        self.cache.known(entry)
    }

    /// The same where there are no chains: what is known of the next callers comes meanwhile.
    #[inline(never)]
    #[unsafe(link_section = ".text.hot.grapnel")]
    fn look_up_ahead(&mut self, pc: u64, sp: u64, resolver: &mut impl Resolver) -> Known {
        self.expect_callers(pc, sp);
        match self.cache.get(pc) {
            Some(entry) => self.cache.known(entry),
            None => self.miss(pc, resolver),
        }
    }

    /// Asks the processor for what is known of a frame, and of its next callers: a word above it that lies where most pcs did which came before is
    /// most often the return address of one of these. Where walks are so far apart that each rule comes from memory, they come at the
    /// same time then, not one after the other. No further ahead: what isn't needed is in the way of what is. And not in the next page,
    /// which may be gone.
    #[inline(always)]
    fn expect_callers(&mut self, pc: u64, sp: u64) {
        const AHEAD: u64 = 256;
        self.cache.expect(pc);
        let (from, ahead) = (self.expected.max(sp), sp.saturating_add(AHEAD));
        let to = ahead.min(StackMemory::end_of_page(sp));
        let (lo, span) = self.cache.pcs();
        self.stack.each(from, to, |word| {
            if word.wrapping_sub(lo) <= span {
                self.cache.expect(word);
            }
        });
        self.expected = from.max(to);
    }

    /// What a rule says that leads to no caller. Apart from the steps: with all kinds side by side the compiler takes a table of
    /// jumps, which each step would wait for.
    #[cold]
    #[inline(never)]
    fn stopped_at(&mut self, rule: PackedRule) -> Gathered {
        if rule.is(RuleKind::Full) || rule.is_signal() {
            return Gathered::Full;
        }
        let is_root = rule.is(RuleKind::Root);
        if is_root {
            self.stack.comes_to_root();
        }
        Gathered::Done { kept: 0, end: if is_root { MemoEnd::Root } else { MemoEnd::Open } }
    }

    #[cold]
    #[inline(never)]
    #[unsafe(link_section = ".text.hot.grapnel")]
    fn miss(&mut self, pc: u64, resolver: &mut impl Resolver) -> Known {
        let known = Known::new(resolver.rule(pc, true));
        keep(&mut self.cache, &mut self.chains, pc, known);
        known
    }
}

/// Keeps what is known of a frame. Where no number is left for it, all others go.
///
/// That no code is at a pc isn't kept: there may be some soon, which nobody tells of. That there is some may be out of date as well,
/// and is the guess then that it was before.
fn keep(cache: &mut RuleCache, chains: &mut Chains, pc: u64, known: Known) {
    if known.rule.is(RuleKind::NotCode) {
        return;
    }
    if cache.insert(pc, known).is_none() && RuleCache::has_room_for(pc) {
        cache.clear();
        chains.forget();
        cache.insert(pc, known);
    }
}

/// What of the memo can be reused.
enum Reuse {
    /// All frames to the root, with their nodes.
    Rest(MemoEnd),
    /// The frames leafward of the last of the first so many; a step has to be made from that one.
    UpTo(usize),
    /// As many frames as there was room for; the path holds them.
    Cut,
}

/// Where a chain of frame pointers ends. By the ABI a frame pointer of 0 is that of a thread's first function, as that of a libc without
/// tables. Code in no module, which is made at run time, is called by others: it has something else in the register.
#[inline(always)]
fn guessed_end(module: u32) -> MemoEnd {
    if module == 0 { MemoEnd::Open } else { MemoEnd::Root }
}

/// What the frame nearest to the root hangs from.
#[inline(always)]
fn root(end: MemoEnd, tree: &mut Interner<'_, impl Sink>) -> NodeId {
    if end == MemoEnd::Root {
        return NodeId::ROOT;
    }
    let flags = if end == MemoEnd::Depth { FrameFlags::TRUNCATED } else { FrameFlags::NO_CALLER };
    let mark = Frame { pc: 0, module: 0, flags };
    tree.child(NodeId::ROOT, FrameKey::new(mark.pc, mark.flags), || mark)
}
