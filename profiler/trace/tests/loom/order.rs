//! The order of events of several rings, as the agent makes it (`record.rs`) and the drain keeps it (`recording.rs`,
//! `merge.rs`). What is modelled here is what they do with rings, numbers and clocks, not their code.

use super::atomic::{AtomicU64, Ordering};
use super::{Memory, model};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Up to a horizon, all has come but the event of whoever was in the middle of one: the reader takes the time, looks whether
/// somebody is at it, and empties the rings. The clock is a counter here; the real one is read without a fence, for which the
/// drain leaves some time.
#[test]
fn nothing_before_the_horizon_comes_later() {
    model(|| {
        let memory = Memory::new(4);
        let clock = Arc::new(AtomicU64::new(0));
        let writer = thread::spawn({
            let (memory, clock) = (memory.clone(), clock.clone());
            move || {
                let mut producer = memory.producer();
                for _ in 0..2 {
                    producer.open();
                    let ticks = clock.fetch_add(1, Ordering::AcqRel);
                    producer.push([ticks]).expect("there is room");
                    producer.close();
                }
            }
        });
        let horizon = clock.fetch_add(0, Ordering::AcqRel);
        let open = memory.consumer().is_open();
        let seen = memory.drained();
        writer.join().unwrap();
        let later = memory.drained();
        let behind = &later[usize::from(open).min(later.len())..];
        assert!(behind.iter().all(|&ticks| ticks >= horizon), "{seen:?} up to {horizon}, then {later:?}");
    });
}

/// What the allocator does with a block: whoever gets it sees all that was done by the one who gave it back.
struct Allocator {
    free: Mutex<Option<u64>>,
}

const BLOCK: u64 = 7;
const ALLOC: u64 = 0;
const FREE: u64 = 1;
/// In place of a number.
const NONE: u64 = u64::MAX;

/// A process with the ring that was there from the start, and another.
struct Process {
    rings: [Arc<Memory>; 2],
    /// Events are to have numbers.
    numbered: AtomicU64,
    shard: AtomicU64,
    allocator: Allocator,
}

impl Process {
    /// Records an event of the block, with a number if `numbered`.
    fn record(&self, ring: usize, kind: u64, numbered: bool) {
        let mut producer = self.rings[ring].producer();
        if !numbered {
            return producer.push([kind, NONE]).expect("there is room");
        }
        producer.open();
        let number = self.shard.fetch_add(1, Ordering::AcqRel);
        producer.push([kind, number]).expect("there is room");
        producer.close();
    }

    /// Ring 0's thread looks whenever it records.
    fn is_numbered(&self) -> bool {
        self.numbered.load(Ordering::Acquire) != 0
    }

    fn free(&self, ring: usize, numbered: bool) {
        self.record(ring, FREE, numbered);
        *self.allocator.free.lock().unwrap() = Some(BLOCK);
    }

    fn take(&self) -> bool {
        self.allocator.free.lock().unwrap().take().is_some()
    }
}

/// The first thread has the block from the time when it was alone. It gives it back, and whoever gets it then records it in
/// another ring. The drain reads ring 0 last, and takes what has no number for due at once: the events come out as they were.
#[test]
fn events_without_a_number_come_before_all_that_have_one() {
    model(|| {
        let process = Arc::new(Process {
            rings: [Memory::new(8), Memory::new(8)],
            numbered: AtomicU64::new(0),
            shard: AtomicU64::new(0),
            allocator: Allocator { free: Mutex::new(None) },
        });
        process.record(0, ALLOC, false);
        let second = thread::spawn({
            let process = process.clone();
            move || {
                // Said before its first event.
                process.numbered.store(1, Ordering::Release);
                if process.take() {
                    process.record(1, ALLOC, true);
                    process.free(1, true);
                }
            }
        });
        let first = thread::spawn({
            let process = process.clone();
            move || {
                process.free(0, process.is_numbered());
                if process.take() {
                    process.record(0, ALLOC, process.is_numbered());
                }
            }
        });
        let mut drain = Drain::default();
        drain.pass(&process);
        second.join().unwrap();
        first.join().unwrap();
        drain.pass(&process);
        assert!(
            drain.waiting.iter().all(Vec::is_empty),
            "nothing waits for a number that never comes: {drain:?}"
        );
        let kinds: Vec<u64> = drain.out.clone();
        assert!(kinds.iter().enumerate().all(|(at, &kind)| kind == at as u64 % 2), "in turn: {kinds:?}");
    });
}

/// The drain's rule.
#[derive(Debug, Default)]
struct Drain {
    waiting: [Vec<[u64; 2]>; 2],
    next: u64,
    out: Vec<u64>,
}

impl Drain {
    fn pass(&mut self, process: &Process) {
        // Ring 0 last.
        for ring in [1, 0] {
            let words = process.rings[ring].drained();
            self.waiting[ring].extend(words.as_chunks::<2>().0);
        }
        loop {
            let due = |event: Option<&[u64; 2]>| {
                event.is_some_and(|event| event[1] == NONE || event[1] == self.next)
            };
            // Of those that are due, one without a number is the earlier.
            let Some(ring) = [0, 1].into_iter().find(|&ring| due(self.waiting[ring].first())) else { break };
            let [kind, number] = self.waiting[ring].remove(0);
            self.next += u64::from(number != NONE);
            self.out.push(kind);
        }
    }
}
