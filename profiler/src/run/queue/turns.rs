//! Two rings whose events take turns.
//!
//! Where two threads run at a time, their events alternate every few. To go from one queue to another as from any to any
//! ([`Queue::run`], and the merge's list of them) takes as long as several events, as it is a guess each time: which queue it is, how far it goes, and where
//! in the list it belongs then. Here which of two comes next is no jump.

use super::super::merge::{Output, Shared};
use super::{Context, Numbers, Queue, is_plain};
use grapnel_trace::Source;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::wire::{self, Order, SHARDS, kind};
use std::hint::cold_path;

/// When one of the two had so many in a row, they don't take turns any more.
const IN_A_ROW: usize = 64;

/// What one of the two brings.
struct Side<'q> {
    rest: &'q [u64],
    /// The clock of its first event.
    first: u64,
    /// The clock of the last that went out.
    ticks: u64,
    clock: u64,
    thread: u32,
    numbers: &'q Numbers,
}

impl<'q> Side<'q> {
    /// `None` where its next event isn't one of those that are known here.
    fn of(words: &'q [u64], used: usize, context: &'q Context) -> Option<Self> {
        let Context { numbers, thread, clock, ticks, large, heap, .. } = context;
        if *heap != 0 || *large != 0 {
            return None;
        }
        let rest = words.get(used..)?;
        let mut side = Self { rest, first: 0, ticks: *ticks, clock: *clock, thread: *thread, numbers };
        side.look().then_some(side)
    }

    /// Looks at the next event. False where it isn't one of those that are known here, or isn't whole.
    #[inline(always)]
    fn look(&mut self) -> bool {
        let Some(first) = self.rest.first_chunk::<{ wire::HEAP_WORDS }>() else { return false };
        self.first = Order::of(first[1]).ticks_near(self.clock);
        is_plain(first[0] as u8 ^ wire::NUMBERED)
    }
}

impl Queue {
    /// Hands out the first events of two queues by the clock, up to `until`, as long as they are allocations and frees that are due and
    /// neither has many in a row. Both keep what comes behind.
    #[inline(never)]
    pub(in super::super) fn take_turns(
        [one, other]: [&mut Self; 2],
        until: u64,
        next: &mut [u32; SHARDS],
        shared: &mut Shared,
        out: &mut impl Output,
    ) {
        let sides = [&*one, &*other].map(|queue| Side::of(&queue.words, queue.used, &queue.context));
        let [Some(one_side), Some(other_side)] = sides else { return };
        let mut sides = [one_side, other_side];
        let (mut last, mut in_a_row) = (0, 0);
        while in_a_row < IN_A_ROW {
            let which = usize::from(sides[1].first < sides[0].first);
            in_a_row = if which == last { in_a_row + 1 } else { 0 };
            last = which;
            let side = &mut sides[which];
            if side.first > until {
                break;
            }
            let Some(words) = side.rest.first_chunk::<{ wire::HEAP_WORDS }>() else { break };
            let address = words[0] >> 8;
            let expected = &mut next[wire::shard(address)];
            let early = Order::of(words[1]).seq.wrapping_sub(*expected) as i32;
            if early > 0 {
                break;
            }
            if early == 0 {
                *expected = expected.wrapping_add(1);
            } else {
                cold_path();
                shared.late += 1;
            }
            side.ticks = side.first;
            shared.done += 1;
            let (thread, ticks) = (side.thread, side.ticks);
            let kind = words[0] as u8 ^ wire::NUMBERED;
            if let Some(source) = Source::from_u8(kind.wrapping_sub(kind::ALLOC)) {
                let (stack, size) = (side.numbers.of(words[2] as u32), words[2] >> 32);
                side.rest = &side.rest[3..];
                out.heap(ticks, HeapEvent::Alloc { thread, stack, address, size, source });
            } else {
                side.rest = &side.rest[2..];
                out.heap(ticks, HeapEvent::Free { thread, address });
            }
            if !side.look() {
                break;
            }
        }
        let [(one_left, one_ticks), (other_left, other_ticks)] =
            sides.map(|side| (side.rest.len(), side.ticks));
        for (queue, left, ticks) in [(one, one_left, one_ticks), (other, other_left, other_ticks)] {
            queue.used = queue.words.len() - left;
            queue.context.ticks = ticks;
        }
    }
}
