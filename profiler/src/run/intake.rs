//! What a pass takes out of the rings of a process, piece by piece as the merge asks for it.
//!
//! A pass begins with a look at all rings: how many words are in each. What is written later is the next pass's. So what
//! the merge works on stays near the processor, and whoever waits for room goes on while the rest is merged.

use super::merge::{Merge, Source};
use super::shared::{Segment, futex_wake};
use grapnel_trace::ring::{Consumer, Corrupt};

/// How many words are taken at a time: few enough to stay near the processor from the ring to the trace.
const PIECE: usize = 8192;
/// So many times fewer words than a ring has are room that is worth waking its thread for: the fewer, the more often threads
/// take turns, which have what they work on fetched anew each time.
const WORTH_WAKING: usize = 4;

/// What was seen of a process's rings.
#[derive(Debug, Default)]
pub(super) struct Looks {
    rings: Vec<Look>,
    /// Threads wait for what was found, or did lately.
    press: bool,
}

/// What was seen of one.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    /// Its thread was in the middle of an event.
    open: bool,
    /// Words that were there, and haven't been taken yet.
    left: usize,
    /// Words that were taken, and whose room nobody was told of.
    untold: usize,
}

/// Whether a ring of so many words presses, of which so many wait to be taken: its thread waits for room, or rings `did` press until now
/// and this one hasn't been caught up with.
fn presses(did: bool, waits: bool, words: usize, capacity: usize) -> bool {
    // Whoever waits for room that is there has only not had its turn yet, or has left the wait for good.
    words >= capacity / 4 && (waits || did)
}

impl Looks {
    /// Looks at all rings that are mapped.
    pub(super) fn look(&mut self, segment: &Segment) -> Result<(), Corrupt> {
        self.rings.resize(segment.count_of_rings(), Look::default());
        let (mut result, mut press) = (Ok(()), false);
        // Ring 0 last: see the merge.
        for (index, look) in self.rings.iter_mut().enumerate().rev() {
            let Some(ring) = segment.ring(index) else {
                *look = Look::default();
                continue;
            };
            // In this order: the words of an event that is over are then among those that are there.
            look.open = ring.is_open();
            let published = ring.published();
            look.left = published.unwrap_or(0);
            press |= presses(self.press, ring.seems_waited_for(), look.left, ring.capacity());
            if let Err(corrupt) = published {
                result = Err(corrupt);
                // The recording is over; its thread is not to wait for that.
                ring.give_up();
                tell_of_room(ring);
            }
        }
        self.press = press;
        result
    }

    /// How many words all rings have room for.
    pub(super) fn room(&self, segment: &Segment) -> usize {
        (0..self.rings.len()).filter_map(|index| segment.ring(index)).map(|ring| ring.capacity()).sum()
    }

    /// Whether threads wait for what was found to be taken, or did lately.
    pub(super) fn press(&self) -> bool {
        self.press
    }

    /// How many threads were in the middle of an event.
    pub(super) fn count_of_open(&self) -> usize {
        self.rings.iter().filter(|look| look.open).count()
    }
}

/// The words that the last look found.
pub(super) struct Intake<'a> {
    pub(super) segment: &'a Segment,
    pub(super) looks: &'a mut Looks,
    /// How many words were taken.
    pub(super) words: usize,
}

impl Intake<'_> {
    /// Takes at most so many words of a ring. Returns how many.
    fn take(&mut self, index: usize, most: usize, to: &mut Vec<u64>) -> usize {
        let Some((look, ring)) = self.looks.rings.get_mut(index).zip(self.segment.ring(index)) else {
            return 0;
        };
        let wanted = look.left.min(most);
        if wanted == 0 {
            return 0;
        }
        let words = ring.drain_some_into(to, wanted).unwrap_or(0);
        // Counters that say something else by now are seen to at the next look.
        look.left = if words == wanted { look.left - words } else { 0 };
        look.untold += words;
        self.words += words;
        if look.untold >= ring.capacity() / WORTH_WAKING {
            look.untold = 0;
            tell_of_room(ring);
        }
        words
    }

    /// Takes what the merge has no use for yet out of the rings that are half full: whoever waits for room may be the one
    /// that the merge waits for.
    pub(super) fn take_what_is_in_the_way(&mut self, merge: &mut Merge) {
        for index in 0..self.looks.rings.len() {
            let Some(ring) = self.segment.ring(index) else { continue };
            if self.looks.rings[index].left >= ring.capacity() / 2 {
                self.take(index, usize::MAX, merge.queue(index).inlet());
            }
            if std::mem::take(&mut self.looks.rings[index].untold) != 0 {
                tell_of_room(ring);
            }
        }
    }
}

/// Wakes the thread that waits for room in a ring, if it does.
pub(super) fn tell_of_room(ring: Consumer<'_>) {
    if let Some(room) = ring.is_waited_for() {
        futex_wake(room);
    }
}

impl Source for Intake<'_> {
    fn more(&mut self, index: usize, to: &mut Vec<u64>) -> bool {
        self.take(index, PIECE, to) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_presses_from_when_its_thread_waits_until_it_is_caught_up_with() {
        let steps = [(false, 3000), (true, 4096), (false, 1024), (false, 1023), (false, 4096), (true, 0)];
        let mut did = false;
        let seen = steps.map(|(waits, words)| {
            did = presses(did, waits, words, 4096);
            did
        });
        assert_eq!(seen, [false, true, true, false, false, false]);
    }
}
