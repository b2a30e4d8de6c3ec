//! The frames of a walk, and those of the last one.
//!
//! # Safety
//! [`Memo::changed_at`] reads words without asking [`StackMemory`] for each: all of them were read from one range, and it
//! makes sure that the current range covers it.

use crate::Error;
use crate::memory::read_word;
use crate::native::plain;
use crate::recent::Leaf;
use crate::stack::{Range, StackMemory};
use crate::start::Cursor;
use crate::tree::{Frame, FrameFlags, FrameKey, Interner, MOST_TOLD, NodeId, Sink};
use crate::zeroed::{Zeroable, zeroed};
use alloc::vec::Vec;

/// How many words are read at most to leave a frame by a fast rule.
const WORDS_PER_FRAME: usize = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) address: u64,
    pub(crate) value: u64,
}

#[cfg(any(test, target_arch = "x86_64"))]
impl Word {
    #[inline(always)]
    pub(crate) fn new(address: u64, value: u64) -> Self {
        Word { address, value }
    }
}

/// A frame that a walk has found.
///
/// The registers are kept apart by the other fields: side by side, the compiler stores two of them as one vector, which
/// it loads from where each was just spilled by itself. That load waits for both stores to leave the pipeline, and
/// costs more than all else that a step does.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    pub(crate) pc: u64,
    module: u32,
    flags: FrameFlags,
    /// No step from here reads `fp`.
    fp_is_dead: bool,
    sp: u64,
    /// The index of the first word that was read to leave the frame.
    word: u32,
    fp: u64,
    /// Once the path is given nodes.
    pub(crate) node: NodeId,
}

impl Found {
    fn key(&self) -> FrameKey {
        FrameKey::new(plain(self.pc), self.flags)
    }

    fn frame(&self) -> Frame {
        Frame { pc: plain(self.pc), module: self.module, flags: self.flags }
    }
}

/// A frame of the last walk.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
    pub(crate) node: NodeId,
    /// How many words were read to leave this frame and all nearer to the root.
    words: u32,
    module: u32,
    flags: FrameFlags,
    /// No step from here reads `fp`.
    fp_is_dead: bool,
}

impl Record {
    /// A frame without flags, to which so many words lead from the root.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn plain(
        pc: u64,
        sp: u64,
        fp: u64,
        node: NodeId,
        words: u32,
        module: u32,
        fp_is_dead: bool,
    ) -> Self {
        Record { pc, sp, fp, node, words, module, flags: FrameFlags::NONE, fp_is_dead }
    }

    /// How many words were read to leave this frame and all nearer to the root.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn words(&self) -> u32 {
        self.words
    }

    /// As the first frame of a walk that is to be kept.
    pub(crate) fn leaf(&self) -> Leaf {
        let Record { pc, sp, fp, fp_is_dead, node, .. } = *self;
        Leaf { pc, sp, fp, fp_is_dead, node }
    }

    fn key(&self) -> FrameKey {
        FrameKey::new(plain(self.pc), self.flags)
    }

    /// Whether a frame at this pc and sp is this one, if it has the same frame pointer or none that matters.
    #[inline(always)]
    pub(crate) fn is_at(&self, pc: u64, sp: u64) -> bool {
        self.sp == sp && self.pc == pc
    }

    /// Whether no step from here reads the frame pointer.
    #[inline(always)]
    pub(crate) fn ignores_fp(&self) -> bool {
        self.fp_is_dead
    }
}

// SAFETY: made of numbers.
unsafe impl Zeroable for Word {}

// SAFETY: made of numbers and a bool, for which zero is false.
unsafe impl Zeroable for Found {}

// SAFETY: as above.
unsafe impl Zeroable for Record {}

/// A list of fixed capacity: what does not fit is dropped, which the depth limit rules out.
#[derive(Debug)]
struct Fixed<T> {
    items: Vec<T>,
    len: usize,
}

impl<T: Zeroable> Fixed<T> {
    fn new(capacity: usize) -> Result<Self, Error> {
        Ok(Fixed { items: zeroed(capacity)?, len: 0 })
    }

    #[inline(always)]
    fn push(&mut self, item: T) {
        if let Some(slot) = self.items.get_mut(self.len) {
            *slot = item;
            self.len += 1;
        }
    }

    fn filled(&self) -> &[T] {
        self.items.get(..self.len).unwrap_or(&[])
    }
}

/// The words that a walk has read, leaf first.
#[derive(Debug)]
pub(crate) struct Words(Fixed<Word>);

impl Words {
    /// A list that keeps nothing. Does not allocate.
    pub(crate) const fn none() -> Self {
        Words(Fixed { items: Vec::new(), len: 0 })
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, address: u64, value: u64) {
        self.0.push(Word { address, value });
    }
}

/// The frames that a walk has found so far, leaf first.
#[derive(Debug)]
pub(crate) struct Path {
    frames: Fixed<Found>,
    pub(crate) words: Words,
}

impl Path {
    pub(crate) fn new(max_frames: usize) -> Result<Self, Error> {
        let words = Words(Fixed::new(max_frames.saturating_mul(WORDS_PER_FRAME))?);
        Ok(Path { frames: Fixed::new(max_frames)?, words })
    }

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.frames.len = 0;
        self.words.0.len = 0;
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.frames.len
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, at: Cursor, module: u32, flags: FrameFlags, fp_is_dead: bool) {
        let word = self.words.0.len as u32;
        let Cursor { pc, sp, fp } = at;
        self.frames.push(Found { pc, module, flags, fp_is_dead, sp, word, fp, node: NodeId::ROOT });
    }

    /// Has the frames of another path in place of its own, as far as there is room, and no words.
    pub(crate) fn take_frames(&mut self, from: &Path) {
        self.clear();
        from.frames().iter().for_each(|found| self.frames.push(*found));
    }

    /// Asks for the module of each frame.
    pub(crate) fn set_modules(&mut self, mut module_of: impl FnMut(u64) -> u32) {
        let filled = self.frames.items.get_mut(..self.frames.len).unwrap_or_default();
        filled.iter_mut().for_each(|found| found.module = module_of(found.pc));
    }

    /// The frames, leaf first.
    #[inline(always)]
    pub(crate) fn frames(&self) -> &[Found] {
        self.frames.filled()
    }

    /// Gives the frames their nodes, root first, below `parent`. Returns the leaf's.
    #[inline(always)]
    pub(crate) fn intern(&mut self, parent: NodeId, tree: &mut Interner<'_, impl Sink>) -> NodeId {
        let filled = self.frames.items.get_mut(..self.frames.len).unwrap_or_default();
        let (mut node, mut left) = (parent, filled.len());
        while let Some(found) = left.checked_sub(1).and_then(|at| filled.get_mut(at))
            && let Some(known) = tree.find(node, found.key())
        {
            (node, found.node) = (known, known);
            left -= 1;
        }
        // Below a frame that is new there are only new ones.
        for some in filled.get_mut(..left).unwrap_or_default().rchunks_mut(MOST_TOLD) {
            let frames = some.iter().rev().map(Found::frame);
            let first = tree.add(node, some.iter().rev().map(Found::key), frames);
            for (index, found) in (0u32..).zip(some.iter_mut().rev()) {
                // Without memory the stack lacks these frames.
                node = first.map_or(node, |first| NodeId(first.0 + index));
                found.node = node;
            }
        }
        node
    }
}

/// The last walk, from the root on.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Memo {
    records: Fixed<Record>,
    words: Words,
    /// The range that all words were read from.
    range: Range,
    /// How many frames there are up to the one without CFI that is nearest to the root. Words from there on are read with a
    /// probe of each page.
    first_guess: Option<usize>,
    /// How many frames have nodes; all of them where this is the largest number. It is another one only behind walks deeper than
    /// the depth limit.
    noded: u32,
    /// How many frames have a sum in [`Deep`](crate::deep::Deep).
    summed: u32,
    pub(crate) end: MemoEnd,
}

const ALL: u32 = u32::MAX;

/// A memo's frames and words in memory: where they begin, how many frames there are, and for how many words there is room. For frames
/// there is room for the most of a stack.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Raw {
    pub(crate) records: *mut Record,
    pub(crate) len: usize,
    pub(crate) words: *mut Word,
    pub(crate) most_words: usize,
}

/// The index of the last word that is not what it was. Most often there is none, so the search takes four at a time;
/// still, none is read before those behind it were found unchanged.
///
/// # Safety
/// All words can be read.
#[inline(always)]
pub(crate) unsafe fn last_changed(words: &[Word]) -> Option<usize> {
    // SAFETY: the caller's promise.
    let changed = |word: &Word| unsafe { read_word(word.address) } != word.value;
    let (rest, fours) = words.as_rchunks::<4>();
    for (index, [a, b, c, d]) in fours.iter().enumerate().rev() {
        if changed(d) || changed(c) || changed(b) || changed(a) {
            let end = rest.len() + 4 * (index + 1);
            return words.get(..end).unwrap_or(&[]).iter().rposition(changed);
        }
    }
    rest.iter().rposition(changed)
}

/// How the last walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoEnd {
    /// At the outermost frame. This follows from the last frame and its words.
    Root,
    /// At the depth limit.
    Depth,
    /// Where no caller was found. This may change without a word changing.
    Open,
}

impl Memo {
    pub(crate) fn new(max_frames: usize) -> Result<Self, Error> {
        let words = Words(Fixed::new(max_frames.saturating_mul(WORDS_PER_FRAME))?);
        let (records, range) = (Fixed::new(max_frames)?, Range::default());
        Ok(Memo { records, words, range, first_guess: None, noded: ALL, summed: 0, end: MemoEnd::Open })
    }

    pub(crate) fn forget(&mut self) {
        self.cut_to(0);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn raw(&mut self) -> Raw {
        let Fixed { items, len } = &mut self.records;
        let words = &mut self.words.0.items;
        Raw {
            records: items.as_mut_ptr(),
            len: (*len).min(items.len()),
            words: words.as_mut_ptr(),
            most_words: words.len(),
        }
    }

    /// The first so many frames are as they were, and behind them there are others now, in all so many frames with so many words.
    ///
    /// # Safety
    /// All of them were written, frames with nodes, and without guesses, and words that were read from the memo's range.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) unsafe fn now_has(&mut self, kept: usize, frames: usize, words: usize) {
        (self.records.len, self.words.0.len) = (frames, words);
        self.summed = self.summed.min(kept as u32);
    }

    /// Whether this is a walk to the root, without a guess, all of whose frames have nodes, and whose words were read from this range.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn is_whole_in(&self, range: Range) -> bool {
        let is_whole = self.end == MemoEnd::Root && self.first_guess.is_none() && self.noded == ALL;
        is_whole && self.records.len != 0 && self.range == range
    }

    /// Keeps so many frames, counted from the root.
    #[inline(always)]
    pub(crate) fn cut_to(&mut self, kept: usize) {
        self.words.0.len = self.words_of(kept);
        self.records.len = kept.min(self.records.len);
        self.first_guess = self.first_guess.filter(|guess| *guess <= kept);
        self.summed = self.summed.min(kept as u32);
        if kept as u32 <= self.noded {
            self.noded = ALL;
        }
    }

    /// Whether the first so many frames have nodes.
    #[inline(always)]
    pub(crate) fn have_nodes(&self, frames: usize) -> bool {
        frames as u32 <= self.noded
    }

    /// Copies the frames that have no nodes yet to a path. The node of the last one that has; `None` if none has.
    pub(crate) fn copy_without_nodes(&self, path: &mut Path) -> Option<NodeId> {
        let noded = self.len().min(self.noded as usize);
        self.copy_to(self.len(), noded, path);
        self.last_of(noded).map(|record| record.node)
    }

    /// The frames of a path, the last ones here, have nodes now, as all others have.
    pub(crate) fn set_nodes(&mut self, path: &Path) {
        let filled = self.records.items.get_mut(..self.records.len).unwrap_or_default();
        for (record, found) in filled.iter_mut().rev().zip(path.frames()) {
            record.node = found.node;
        }
        self.noded = ALL;
    }

    /// How many frames have a sum.
    pub(crate) fn summed(&self) -> usize {
        self.summed as usize
    }

    /// All of them have one.
    pub(crate) fn are_summed(&mut self) {
        self.summed = self.records.len as u32;
    }

    /// The keys of the frames behind the first so many.
    pub(crate) fn keys_from(&self, frames: usize) -> impl Iterator<Item = FrameKey> {
        self.records.filled().get(frames..).unwrap_or(&[]).iter().map(Record::key)
    }

    /// How many frames there are.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.records.len
    }

    /// The last of the first so many frames; `None` of none.
    #[inline(always)]
    pub(crate) fn last_of(&self, frames: usize) -> Option<&Record> {
        self.records.items.get(frames.wrapping_sub(1))
    }

    /// How many words were read to leave the first so many frames.
    #[inline(always)]
    fn words_of(&self, frames: usize) -> usize {
        self.last_of(frames).map_or(0, |record| record.words as usize)
    }

    /// Looks whether the words of the last `of` of the first so many frames are as they were. If not, the answer is how many frames
    /// there are up to the last one that has a changed word.
    ///
    /// The words are compared from the leaf to the root. So a word is read only if all nearer to the leaf are as they
    /// were, which means that a walk would read it too, and that it lies in a frame that is alive.
    #[inline]
    #[unsafe(link_section = ".text.hot.grapnel")]
    pub(crate) fn changed_at(&self, frames: usize, of: usize, stack: &mut StackMemory) -> Option<usize> {
        let before = self.words_of(frames.wrapping_sub(of));
        let words = self.words.0.items.get(before..self.words_of(frames)).unwrap_or(&[]);
        // What lies behind a guess need not be there: one of the last walk's, or one that has led this walk here.
        let range = stack.range();
        let is_led = || stack.has_guessed() && !words.iter().all(|word| range.holds_word(word.address));
        let changed = if self.first_guess.is_some_and(|guess| guess <= frames) || is_led() {
            stack.guess();
            words.iter().rposition(|w| stack.read(w.address) != Some(w.value))
        } else if stack.range().covers(self.range) {
            // SAFETY: the words lie in `self.range`, which lies in the stack's current range.
            unsafe { last_changed(words) }
        } else {
            words.iter().rposition(|w| stack.read(w.address) != Some(w.value))
        }?;
        let mut frames = frames;
        while frames > 1 && self.words_of(frames - 1) > before + changed {
            frames -= 1;
        }
        Some(frames)
    }

    /// Whether words were read from a range that this one covers, none of them behind a guess: each can be read by itself, whatever
    /// became of the others.
    pub(crate) fn is_sure_in(&self, range: Range) -> bool {
        self.first_guess.is_none() && range.covers(self.range)
    }

    /// Copies the frames from number `from` down to the one behind number `to` with their words to a path.
    pub(crate) fn copy_to(&self, from: usize, to: usize, path: &mut Path) {
        for frames in (to + 1..=from).rev() {
            let Some(&Record { pc, sp, fp, module, flags, fp_is_dead, .. }) = self.last_of(frames) else {
                continue;
            };
            path.push(Cursor { pc, sp, fp }, module, flags, fp_is_dead);
            let words = self.words.0.items.get(self.words_of(frames - 1)..self.words_of(frames));
            for word in words.unwrap_or(&[]).iter().rev() {
                path.words.0.push(*word);
            }
        }
    }

    /// The leaf, the words of the whole walk and the range that they were read from, if the walk is one that can be told by
    /// its words alone: complete, and without a guess.
    pub(crate) fn whole(&self) -> Option<(&Record, &[Word], Range)> {
        if self.end != MemoEnd::Root || self.first_guess.is_some() {
            return None;
        }
        Some((self.last_of(self.len())?, self.words.0.filled(), self.range))
    }

    /// As [`Memo::take`], of frames without nodes.
    pub(crate) fn take_without_nodes(&mut self, path: &Path, range: Range) {
        self.noded = self.noded.min(self.len() as u32);
        self.take(path, range);
    }

    /// Takes the frames of a path, which have their nodes, and its words, which were read from `range`.
    #[inline(always)]
    pub(crate) fn take(&mut self, path: &Path, range: Range) {
        self.range = range;
        let words = self.take_words(path);
        self.take_frames(path.frames(), words, path.frames().iter().rev().map(|found| found.node));
    }

    /// As [`Path::intern`], but all nodes are told as new ones, and [`Memo::take`] behind it.
    #[inline(always)]
    pub(crate) fn tell_and_take(
        &mut self,
        path: &Path,
        range: Range,
        parent: NodeId,
        tree: &mut Interner<'_, impl Sink>,
    ) -> NodeId {
        self.range = range;
        let (words, mut node) = (self.take_words(path), parent);
        for some in path.frames().rchunks(MOST_TOLD) {
            let Some(first) = tree.number(some.len() as u32) else {
                // Without numbers the stack lacks these frames.
                self.take_frames(some, words, core::iter::repeat(node));
                continue;
            };
            self.take_frames(some, words, (first.0..).map(NodeId));
            tree.tell(first, node, some.iter().rev().map(Found::frame));
            node = NodeId(first.0 + (some.len() as u32 - 1));
        }
        node
    }

    /// Takes the words of a path. How many there are now.
    #[inline(always)]
    fn take_words(&mut self, path: &Path) -> u32 {
        let (Fixed { items, len }, new) = (&mut self.words.0, path.words.0.filled());
        if let Some(to) = items.get_mut(*len..*len + new.len()) {
            to.iter_mut().zip(new.iter().rev()).for_each(|(to, word)| *to = *word);
            *len += new.len();
        }
        *len as u32
    }

    /// Takes frames of a path whose words, all so many of them, are here already: root first, with these nodes.
    #[inline(always)]
    fn take_frames(&mut self, frames: &[Found], words: u32, nodes: impl Iterator<Item = NodeId>) {
        let Fixed { items, len } = &mut self.records;
        let free = items.get_mut(*len..).unwrap_or_default();
        let mut all_flags = 0;
        for ((record, found), node) in free.iter_mut().zip(frames.iter().rev()).zip(nodes) {
            let Found { pc, module, flags, fp_is_dead, sp, word, fp, .. } = *found;
            *record = Record { pc, sp, fp, node, words: words - word, module, flags, fp_is_dead };
            all_flags |= flags.bits();
        }
        let before = *len;
        *len += frames.len().min(free.len());
        if all_flags & FrameFlags::GUESS.bits() != 0 && self.first_guess.is_none() {
            let guess = |record: &Record| record.flags.contains(FrameFlags::GUESS);
            let first = self.records.filled().get(before..).and_then(|new| new.iter().position(guess));
            self.first_guess = first.map(|at| before + at + 1);
        }
    }
}
