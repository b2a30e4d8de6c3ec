//! The ring's protocol, and what the agent and the drain build on it, in all interleavings and with all values that the
//! memory model allows. The ring is the crate's own source, with loom's atomics in place of the processor's.
//!
//! loom lets no load see a store that comes later, so these models don't need the release store of `head` and its acquire
//! load, which keep a word from being overwritten before it is read. They fail without any of the others.

extern crate alloc;

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use ring::{Consumer, Full, Producer, RingControl};

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
#[path = "../../src/ring.rs"]
#[expect(dead_code, unreachable_pub, reason = "it is written as a part of the crate")]
mod ring;

mod order;

use atomic::{AtomicU64, Ordering};

/// A ring's shared memory.
struct Memory {
    control: RingControl,
    words: Vec<AtomicU64>,
}

impl Memory {
    fn new(words: usize) -> Arc<Self> {
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { control: RingControl::default(), words })
    }

    fn producer(&self) -> Producer<'_> {
        Producer::new(&self.control, &self.words)
    }

    fn consumer(&self) -> Consumer<'_> {
        Consumer::new(&self.control, &self.words)
    }

    /// What the reader finds now.
    fn drained(&self) -> Vec<u64> {
        let mut out = Vec::new();
        self.consumer().drain_into(&mut out).expect("the counters agree");
        out
    }

    /// What the reader finds until it has so many words.
    fn drain(&self, words: usize) -> Vec<u64> {
        let mut out = Vec::new();
        while out.len() < words {
            let more = self.drained();
            if more.is_empty() {
                thread::yield_now();
            }
            out.extend(more);
        }
        out
    }
}

/// Every interleaving with at most so many switches away from a thread that could go on: enough for all faults of two
/// threads that were tried, and the models end in seconds.
fn model(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// The records of two words that a writer writes: each tells its number twice.
fn record(number: u64) -> [u64; 2] {
    [number, !number]
}

fn are_whole(words: &[u64], first: u64) {
    assert_eq!(words.len() % 2, 0, "a record is published whole");
    for (number, words) in (first..).zip(words.chunks(2)) {
        assert_eq!(words, record(number), "in order, none lost, none twice, and with its own words");
    }
}

#[test]
fn a_full_ring_waits_and_loses_nothing() {
    model(|| {
        let memory = Memory::new(4);
        let writer = thread::spawn({
            let memory = memory.clone();
            move || {
                let mut producer = memory.producer();
                for number in 0..3 {
                    while producer.push(record(number)) == Err(Full) {
                        thread::yield_now();
                    }
                }
            }
        });
        are_whole(&memory.drain(6), 0);
        writer.join().unwrap();
    });
}

#[test]
fn whatever_instant_the_reader_looks_it_sees_whole_records() {
    model(|| {
        let memory = Memory::new(4);
        let writer = thread::spawn({
            let memory = memory.clone();
            move || {
                let mut producer = memory.producer();
                // It may be killed between any two of these.
                (0..2).for_each(|number| producer.push(record(number)).expect("there is room"));
            }
        });
        let seen = memory.drained();
        are_whole(&seen, 0);
        writer.join().unwrap();
        are_whole(&memory.drained(), seen.len() as u64 / 2);
    });
}

#[test]
fn whoever_sleeps_for_want_of_room_is_woken() {
    model(|| {
        let memory = Memory::new(2);
        memory.producer().push(record(0)).expect("there is room");
        let writer = thread::spawn({
            let memory = memory.clone();
            move || {
                let mut producer = memory.producer();
                producer.waiting(|producer, room| {
                    let seen = room.load(Ordering::Acquire);
                    // As the kernel has it: a sleep ends when the word is another.
                    if !producer.has_room(2) {
                        while room.load(Ordering::Acquire) == seen {
                            thread::yield_now();
                        }
                    }
                });
            }
        });
        are_whole(&memory.drained(), 0);
        memory.consumer().is_waited_for();
        writer.join().unwrap();
    });
}

#[test]
fn the_next_writer_goes_on_where_the_last_one_was() {
    model(|| {
        let memory = Memory::new(4);
        let writers = thread::spawn({
            let memory = memory.clone();
            move || {
                memory.producer().push(record(0)).expect("there is room");
                // Its thread has ended; another one takes the ring, in another moment of the reader's.
                let mut next = memory.producer();
                while next.push(record(1)) == Err(Full) {
                    thread::yield_now();
                }
                while next.push(record(2)) == Err(Full) {
                    thread::yield_now();
                }
            }
        });
        are_whole(&memory.drain(6), 0);
        writers.join().unwrap();
    });
}
