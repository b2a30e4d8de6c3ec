//! The frames of a walk, and those of the last one.
//!
//! # Safety
//! [`Memo::changed_at`] reads words without asking [`StackMemory`] for each: all of them were read from one range, and it
//! makes sure that the current range covers it.

use crate::Error;
use crate::memory::read_word;
use crate::native::{plain, prefetch};
use crate::recent::Leaf;
use crate::stack::{Range, StackMemory};
use crate::start::Cursor;
use crate::tree::{Frame, FrameFlags, FrameKey, Interner, NodeId, Sink, Stack};
use crate::zeroed::{Zeroable, zeroed};
use alloc::vec::Vec;

/// How many words are read at most to leave a frame by a fast rule.
const WORDS_PER_FRAME: usize = 3;

/// Stands for the module of a frame's pc, which the rule cache knows.
pub(crate) const UNKNOWN: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    address: u64,
    value: u64,
}

#[cfg(test)]
impl Word {
    pub(crate) fn new(address: u64, value: u64) -> Self {
        Word { address, value }
    }
}

/// One frame of a walk.
///
/// The registers are kept apart by the other fields: side by side, the compiler stores two of them as one vector, which
/// it loads from where each was just spilled by itself. That load waits for both stores to leave the pipeline, and
/// costs more than all else that a step does.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    pub(crate) pc: u64,
    /// [`UNKNOWN`] as long as nobody needs it.
    module: u32,
    flags: FrameFlags,
    /// No step from here reads `fp`.
    fp_is_dead: bool,
    pub(crate) sp: u64,
    pub(crate) node: NodeId,
    /// The index of the first word that was read to leave the frame.
    word: u32,
    pub(crate) fp: u64,
    /// The hash of `node`'s stack.
    hash: u64,
}

impl Record {
    pub(crate) fn stack(&self) -> Stack {
        Stack { node: self.node, hash: self.hash }
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

// SAFETY: made of numbers.
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

    fn extend(&mut self, items: &[T]) {
        for item in items {
            self.push(*item);
        }
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
    records: Fixed<Record>,
    pub(crate) words: Words,
    /// The guessed frame nearest to the root. Known once the path was interned.
    last_guess: Option<usize>,
}

impl Path {
    pub(crate) fn new(max_frames: usize) -> Result<Self, Error> {
        let words = Words(Fixed::new(max_frames.saturating_mul(WORDS_PER_FRAME))?);
        Ok(Path { records: Fixed::new(max_frames)?, words, last_guess: None })
    }

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.records.len = 0;
        self.words.0.len = 0;
        self.last_guess = None;
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.records.len
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, at: Cursor, module: u32, flags: FrameFlags, fp_is_dead: bool) {
        let word = self.words.0.len as u32;
        let Cursor { pc, sp, fp } = at;
        self.records.push(Record {
            pc,
            module,
            flags,
            fp_is_dead,
            sp,
            node: NodeId::ROOT,
            word,
            fp,
            hash: 0,
        });
    }

    /// The frames, leaf first.
    #[inline(always)]
    pub(crate) fn frames(&self) -> &[Record] {
        self.records.filled()
    }

    /// Whether a frame is a guess. Known once the path was interned.
    #[inline(always)]
    pub(crate) fn has_guess(&self) -> bool {
        self.last_guess.is_some()
    }

    /// As [`intern`](Self::intern), where the frames, none of them a guess, are known to have these nodes.
    #[inline(always)]
    pub(crate) fn adopt(&mut self, nodes: &[NodeId], parent: Stack, word_base: u32) -> Stack {
        let filled = self.records.items.get_mut(..self.records.len).unwrap_or_default();
        let mut stack = parent;
        for (record, node) in filled.iter_mut().zip(nodes).rev() {
            stack = Stack { node: *node, hash: record.key().hash_after(stack.hash) };
            (record.node, record.hash) = (stack.node, stack.hash);
            record.word = record.word.wrapping_add(word_base);
        }
        stack
    }

    /// Interns the frames, root first, below `parent`. Words are counted from `word_base` from now on. `module_of` is
    /// asked for the module of a pc that a new node needs and the path doesn't know.
    ///
    /// Returns the leaf's stack.
    #[inline(always)]
    pub(crate) fn intern(
        &mut self,
        parent: Stack,
        word_base: u32,
        tree: &mut Interner<'_, impl Sink>,
        mut module_of: impl FnMut(u64) -> u32,
    ) -> Stack {
        let filled = self.records.items.get_mut(..self.records.len).unwrap_or_default();
        // All hashes first, so that the processor waits for many slots of the tree at the same time.
        let mut hash = parent.hash;
        for record in filled.iter_mut().rev() {
            hash = record.key().hash_after(hash);
            record.hash = hash;
            if let Some(slot) = tree.slot_of(hash) {
                prefetch(slot);
            }
        }
        let mut stack = parent;
        for (index, record) in filled.iter_mut().enumerate().rev() {
            if record.flags.contains(FrameFlags::GUESS) && self.last_guess.is_none() {
                self.last_guess = Some(index);
            }
            let (pc, flags, known) = (record.pc, record.flags, record.module);
            stack = tree.child(stack, record.key(), record.hash, || {
                let module = if known == UNKNOWN { module_of(pc) } else { known };
                Frame { pc: plain(pc), module, flags }
            });
            record.node = stack.node;
            record.hash = stack.hash;
            record.word = record.word.wrapping_add(word_base);
        }
        stack
    }
}

/// The last walk. Its records and words fill the end of their arrays, leaf first, so that the root is always last.
#[derive(Debug)]
pub(crate) struct Memo {
    records: Vec<Record>,
    words: Vec<Word>,
    /// The index of the leaf.
    leaf: usize,
    /// The range that all words were read from.
    range: Range,
    /// The frame without CFI that is nearest to the root. Words from the first such frame on are read with a probe of
    /// each page.
    last_guess: Option<usize>,
    pub(crate) end: MemoEnd,
}

/// The index of the first word that is not what it was. Most often there is none, so the search takes four at a time;
/// still, none is read before those in front of it were found unchanged.
///
/// # Safety
/// All words can be read.
#[inline(always)]
pub(crate) unsafe fn first_changed(words: &[Word]) -> Option<usize> {
    // SAFETY: the caller's promise.
    let changed = |word: &Word| unsafe { read_word(word.address) } != word.value;
    let (fours, rest) = words.as_chunks::<4>();
    for (index, [a, b, c, d]) in fours.iter().enumerate() {
        if changed(a) || changed(b) || changed(c) || changed(d) {
            return words.iter().skip(4 * index).position(changed).map(|at| 4 * index + at);
        }
    }
    rest.iter().position(changed).map(|at| 4 * fours.len() + at)
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
        let records: Vec<Record> = zeroed(max_frames)?;
        let words = zeroed(max_frames.saturating_mul(WORDS_PER_FRAME))?;
        let leaf = records.len();
        let range = Range::default();
        Ok(Memo { records, words, leaf, range, last_guess: None, end: MemoEnd::Open })
    }

    pub(crate) fn forget(&mut self) {
        self.leaf = self.records.len();
        self.last_guess = None;
    }

    /// Drops the frames before `leaf`.
    #[inline(always)]
    pub(crate) fn cut_to(&mut self, leaf: usize) {
        self.leaf = leaf;
    }

    /// The index past the root.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    #[inline(always)]
    pub(crate) fn leaf(&self) -> usize {
        self.leaf
    }

    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<&Record> {
        self.records.get(index)
    }

    #[inline(always)]
    fn word_of(&self, index: usize) -> usize {
        self.records.get(index).map_or(self.words.len(), |r| r.word as usize)
    }

    /// The first frame from `index` to the root one of whose words is not what it was.
    ///
    /// The words are compared from the leaf to the root. So a word is read only if all nearer to the leaf are as they
    /// were, which means that a walk would read it too, and that it lies in a frame that is alive.
    #[inline]
    pub(crate) fn changed_at(&self, index: usize, stack: &mut StackMemory) -> Option<usize> {
        let first = self.word_of(index);
        let words = self.words.get(first..).unwrap_or(&[]);
        let same = if self.last_guess.is_some_and(|guess| guess >= index) {
            stack.distrust();
            words.iter().position(|w| stack.read(w.address) != Some(w.value))
        } else if stack.range().covers(self.range) {
            // SAFETY: the words lie in `self.range`, which lies in the stack's current range.
            unsafe { first_changed(words) }
        } else {
            words.iter().position(|w| stack.read(w.address) != Some(w.value))
        };
        let changed = first + same?;
        let mut frame = index;
        while frame + 1 < self.records.len() && self.word_of(frame + 1) <= changed {
            frame += 1;
        }
        Some(frame)
    }

    /// Copies the frames `from..to` with their words to a path.
    pub(crate) fn copy_to(&self, from: usize, to: usize, path: &mut Path) {
        let (first, end) = (self.word_of(from), self.word_of(to));
        let base = (path.words.0.len as u32).wrapping_sub(first as u32);
        for record in self.records.get(from..to).unwrap_or(&[]) {
            path.records.push(Record { word: record.word.wrapping_add(base), ..*record });
        }
        path.words.0.extend(self.words.get(first..end).unwrap_or(&[]));
    }

    /// The words of the whole walk and the range that they were read from, if the walk is one that can be told by its
    /// words alone: complete, and without a guess.
    pub(crate) fn whole(&self) -> Option<(&Record, &[Word], Range)> {
        if self.end != MemoEnd::Root || self.last_guess.is_some() {
            return None;
        }
        let leaf = self.records.get(self.leaf)?;
        Some((leaf, self.words.get(leaf.word as usize..)?, self.range))
    }

    /// Where the words of a path of that many words would begin, in front of the frames from `kept`.
    #[inline(always)]
    pub(crate) fn word_base(&self, kept: usize, path: &Path) -> u32 {
        (self.word_of(kept) as u32).wrapping_sub(path.words.0.len as u32)
    }

    /// Puts an interned path in front of the frames from `kept`.
    #[inline(always)]
    pub(crate) fn store(&mut self, kept: usize, path: &Path, range: Range) {
        let words_end = self.word_of(kept);
        let (records, words) = (path.records.filled(), path.words.0.filled());
        let leaf = kept.wrapping_sub(records.len());
        let word = words_end.wrapping_sub(words.len());
        if let (Some(to), Some(words_to)) =
            (self.records.get_mut(leaf..kept), self.words.get_mut(word..words_end))
        {
            to.copy_from_slice(records);
            words_to.copy_from_slice(words);
            self.leaf = leaf;
            self.range = range;
            let kept_guess = self.last_guess.filter(|guess| *guess >= kept);
            self.last_guess = kept_guess.or(path.last_guess.map(|guess| leaf + guess));
        } else {
            self.forget();
        }
    }
}
