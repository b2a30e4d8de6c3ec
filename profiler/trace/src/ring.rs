//! A ring of words with one writer and one reader, in memory that two processes share.
//!
//! Invariant: `head <= tail <= head + capacity`, both counting words since the ring was made. The words in
//! `[head, tail)` belong to the reader, all others to the writer. The writer publishes with a release store
//! of `tail`, the reader gives back with a release store of `head`; each reads the other's with acquire. A
//! record is published whole or not at all, so a writer that dies at any instant leaves only whole records.
//!
//! A writer that finds no room says that it waits before it looks again, and the reader looks for that after it gave room
//! back: one of the two sees the other.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use alloc::vec::Vec;
use core::hint::cold_path;

/// The shared counters of a ring. All zeroes is a valid empty ring.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct RingControl {
    /// Words published so far. Written by the writer only.
    pub tail: AtomicU64,
    _pad0: [AtomicU64; 7],
    /// Words taken so far. Written by the reader only.
    pub head: AtomicU64,
    _pad1: [AtomicU64; 7],
    /// Log2 of how many words are used; 0 until the ring is ready, and again where it was given up: nothing in it is to be read.
    pub capacity_log2: AtomicU32,
    /// Futex on which the writer waits for room; the reader adds one when it made some.
    pub room: AtomicU32,
    /// Not 0 while the writer has taken an event's place in the order and not published it yet. See
    /// [`Producer::open`].
    pub open: AtomicU64,
    /// Not 0 while the writer waits on `room`.
    pub waiting: AtomicU32,
    _pad2: AtomicU32,
    _pad3: [AtomicU64; 5],
}

/// A ring has no room for a record: the reader is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The writing end. One per ring at any time.
#[derive(Debug)]
pub struct Producer<'a> {
    control: &'a RingControl,
    words: &'a [AtomicU64],
    mask: u64,
    tail: u64,
    /// What `tail` may not pass: the last head that was seen, a lower bound of the true one, and the capacity.
    limit: u64,
}

impl<'a> Producer<'a> {
    /// Takes up the ring where the last writer left it. `words` must have a power of two of elements.
    ///
    /// Never allocates or locks.
    pub fn new(control: &'a RingControl, words: &'a [AtomicU64]) -> Self {
        debug_assert!(words.len().is_power_of_two());
        let tail = control.tail.load(Ordering::Relaxed);
        let mut producer = Self { control, words, mask: words.len() as u64 - 1, tail, limit: 0 };
        producer.look();
        producer
    }

    /// Looks how far the reader is. Returns its head.
    #[inline]
    fn look(&mut self) -> u64 {
        let head = self.control.head.load(Ordering::Acquire);
        self.limit = head + self.capacity();
        head
    }

    /// Appends and publishes one record, or leaves the ring as it is. Never allocates or locks.
    #[inline]
    pub fn push<const N: usize>(&mut self, record: [u64; N]) -> Result<(), Full> {
        self.push_slice(&record)
    }

    /// As [`Producer::push`], for a record whose length is not known when compiling.
    #[inline]
    pub fn push_slice(&mut self, record: &[u64]) -> Result<(), Full> {
        if !self.has_room(record.len() as u64) {
            return Err(Full);
        }
        for (word, at) in record.iter().zip(self.tail..) {
            self.words[(at & self.mask) as usize].store(*word, Ordering::Relaxed);
        }
        self.publish(record.len() as u64);
        Ok(())
    }

    /// As [`Producer::push`], of a record that there is known to be room for: [`Producer::last_start`] said so, or
    /// [`Producer::has_room`].
    #[inline(always)]
    pub fn put<const N: usize>(&mut self, record: [u64; N]) {
        debug_assert!(self.tail + N as u64 <= self.limit);
        let start = (self.tail & self.mask) as usize;
        if let Some(words) = self.words.get(start..).and_then(<[_]>::first_chunk::<N>) {
            for (to, word) in words.iter().zip(record) {
                to.store(word, Ordering::Relaxed);
            }
        } else {
            cold_path();
            for (word, at) in record.iter().zip(self.tail..) {
                self.words[(at & self.mask) as usize].store(*word, Ordering::Relaxed);
            }
        }
        self.publish(N as u64);
    }

    /// Writes a word so many words behind what is published. There is known to be [room](Producer::has_room) for it.
    #[inline(always)]
    pub fn stage(&mut self, behind: u64, word: u64) {
        debug_assert!(self.tail + behind < self.limit);
        self.words[((self.tail + behind) & self.mask) as usize].store(word, Ordering::Relaxed);
    }

    /// As [`Producer::stage`], of words side by side.
    #[inline(always)]
    pub fn stage_all(&mut self, behind: u64, new: impl ExactSizeIterator<Item = u64>) {
        let count = new.len();
        debug_assert!(self.tail + behind + count as u64 <= self.limit);
        let start = ((self.tail + behind) & self.mask) as usize;
        if let Some(words) = self.words.get(start..start + count) {
            words.iter().zip(new).for_each(|(word, new)| word.store(new, Ordering::Relaxed));
        } else {
            cold_path();
            for (new, at) in new.zip(self.tail + behind..) {
                self.words[(at & self.mask) as usize].store(new, Ordering::Relaxed);
            }
        }
    }

    /// As [`Producer::put`], of a word and others behind it.
    #[inline(always)]
    pub fn put_all(&mut self, first: u64, others: impl ExactSizeIterator<Item = u64>) {
        let count = others.len();
        let start = (self.tail & self.mask) as usize;
        if let Some([to_first, to_others @ ..]) = self.words.get(start..start + 1 + count) {
            for (to, word) in to_others.iter().zip(others) {
                to.store(word, Ordering::Relaxed);
            }
            to_first.store(first, Ordering::Relaxed);
        } else {
            cold_path();
            self.stage_all(1, others);
            self.stage(0, first);
        }
        self.publish(1 + count as u64);
    }

    /// Publishes so many words, which were [staged](Producer::stage), as one record.
    #[inline(always)]
    pub fn publish(&mut self, words: u64) {
        self.tail += words;
        self.control.tail.store(self.tail, Ordering::Release);
    }

    /// Says that an event's place in the order is being taken: until [`Producer::close`], events of other rings may wait for
    /// it.
    #[inline]
    pub fn open(&self) {
        self.control.open.store(1, Ordering::Relaxed);
    }

    /// The event is published.
    #[inline]
    pub fn close(&self) {
        self.control.open.store(0, Ordering::Release);
    }

    /// Whether the ring was made ready, and not given up: nobody reads it else.
    pub fn is_ready(&self) -> bool {
        self.control.capacity_log2.load(Ordering::Relaxed) != 0
    }

    /// The ring's counters.
    pub fn control(&self) -> &'a RingControl {
        self.control
    }

    /// Whether a record of so many words would go in now.
    #[inline]
    pub fn has_room(&mut self, words: u64) -> bool {
        let end = self.tail + words;
        if end > self.limit {
            self.look();
        }
        end <= self.limit
    }

    /// Until `wait` returns, the reader says on the futex [`RingControl::room`] when it made room: `wait` is given that,
    /// looks for room, and sleeps where there is none.
    pub fn waiting<R>(&mut self, wait: impl FnOnce(&mut Self, &'a AtomicU32) -> R) -> R {
        self.control.waiting.store(1, Ordering::Relaxed);
        // Before its head is looked at: see `Consumer::is_waited_for`.
        fence(Ordering::SeqCst);
        let result = wait(self, &self.control.room);
        self.control.waiting.store(0, Ordering::Relaxed);
        result
    }

    /// The last position from which a record of so many words would go in, as far as is known.
    pub fn last_start(&self, words: u64) -> u64 {
        self.limit.saturating_sub(words)
    }

    /// Whether half of the ring waits for the reader: the time to wake it if it sleeps.
    pub fn is_half_full(&mut self) -> bool {
        self.tail - self.look() >= self.capacity() / 2
    }

    /// A word that was written, by its position. One that is older than the ring is large has been overwritten.
    pub fn written(&self, position: u64) -> u64 {
        self.words.get((position & self.mask) as usize).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Words written since the ring was made.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Capacity in words.
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Consumer<'a> {
    control: &'a RingControl,
    words: &'a [AtomicU64],
}

/// The counters of a ring contradict each other: its writer is not the agent, or went astray.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ring of {capacity} words claims {tail} written and {head} taken")]
pub struct Corrupt {
    /// Words the ring holds.
    pub capacity: u64,
    /// Words written, as the ring has it.
    pub tail: u64,
    /// Words taken.
    pub head: u64,
}

impl<'a> Consumer<'a> {
    /// Reads `words` (a power of two of elements).
    pub fn new(control: &'a RingControl, words: &'a [AtomicU64]) -> Self {
        Self { control, words }
    }

    /// Whether the writer has taken an event's place in the order and not published it yet.
    pub fn is_open(&self) -> bool {
        self.control.open.load(Ordering::Acquire) != 0
    }

    /// How many words the ring holds.
    pub fn capacity(&self) -> usize {
        self.words.len()
    }

    /// Makes the ring one that nobody reads, for good: where its counters contradict each other, nobody knows what there is to give back, and
    /// its writer would wait for it.
    pub fn give_up(&self) {
        self.control.capacity_log2.store(0, Ordering::Release);
    }

    /// Whether the writer may wait for room that was given back. Then the futex that is returned has another value than
    /// the one it sleeps on, and is to be woken.
    pub fn is_waited_for(&self) -> Option<&'a AtomicU32> {
        // Behind the store of `head`: either the writer sees that, or this sees that the writer waits.
        fence(Ordering::SeqCst);
        if self.control.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.control.room.fetch_add(1, Ordering::AcqRel);
        Some(&self.control.room)
    }

    /// Whether the writer waits for room, as far as is seen without a fence.
    pub fn seems_waited_for(&self) -> bool {
        self.control.waiting.load(Ordering::Relaxed) != 0
    }

    /// How many words are published and not taken.
    pub fn published(&self) -> Result<usize, Corrupt> {
        let tail = self.control.tail.load(Ordering::Acquire);
        let head = self.control.head.load(Ordering::Relaxed);
        let capacity = self.words.len() as u64;
        let waiting = tail.wrapping_sub(head);
        if waiting > capacity { Err(Corrupt { capacity, tail, head }) } else { Ok(waiting as usize) }
    }

    /// Moves all that is published to the end of `out` and gives the room back. Returns how many words.
    pub fn drain_into(&self, out: &mut Vec<u64>) -> Result<usize, Corrupt> {
        self.drain_some_into(out, usize::MAX)
    }

    /// As [`Consumer::drain_into`], but at most so many words, the last record perhaps not whole.
    pub fn drain_some_into(&self, out: &mut Vec<u64>, most: usize) -> Result<usize, Corrupt> {
        let len = self.published()?.min(most);
        let head = self.control.head.load(Ordering::Relaxed);
        let start = (head & (self.words.len() as u64 - 1)) as usize;
        let first = len.min(self.words.len() - start);
        for words in [&self.words[start..start + first], &self.words[..len - first]] {
            out.extend(words.iter().map(|word| word.load(Ordering::Relaxed)));
        }
        self.control.head.store(head.wrapping_add(len as u64), Ordering::Release);
        Ok(len)
    }
}
