//! The agent's own memory, as far as it was mapped: what lies there is known to nobody in the program.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A mapping: where it starts and ends; zeroes for none.
struct Entry([AtomicUsize; 2]);

/// More are not noted, and count as the program's.
static ALL: [Entry; 512] = [const { Entry([AtomicUsize::new(0), AtomicUsize::new(0)]) }; 512];

impl Entry {
    fn range(&self) -> Range<usize> {
        let [start, end] = self.0.each_ref().map(|word| word.load(Ordering::Acquire));
        start..end
    }
}

/// Notes a mapping of the agent's.
pub(crate) fn mapped(start: usize, len: usize) {
    for Entry([from, to]) in &ALL {
        if from.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return to.store(start + len, Ordering::Release);
        }
    }
}

/// Notes that a mapping, or its beginning or end, is none any more.
pub(crate) fn unmapped(start: usize, len: usize) {
    let end = start + len;
    for entry in &ALL {
        let Range { start: from, end: to } = entry.range();
        let [first, last] = &entry.0;
        if (from, to) == (start, end) {
            last.store(0, Ordering::Release);
            return first.store(0, Ordering::Release);
        } else if from == start && end < to {
            return first.store(end, Ordering::Release);
        } else if to == end && from < start {
            return last.store(start, Ordering::Release);
        }
    }
}

/// Tells of the parts of a range that are not the agent's.
pub(crate) fn without(range: Range<usize>, each: &mut dyn FnMut(Range<usize>)) {
    apart(range, &ALL, each);
}

fn apart(range: Range<usize>, entries: &[Entry], each: &mut dyn FnMut(Range<usize>)) {
    if range.is_empty() {
        return;
    }
    let cut = |entry: &Entry| {
        let own = entry.range();
        own.start < range.end && range.start < own.end
    };
    let Some(at) = entries.iter().position(cut) else { return each(range) };
    let own = entries[at].range();
    apart(range.start..own.start.min(range.end), &entries[at + 1..], each);
    apart(own.end.max(range.start)..range.end, &entries[at + 1..], each);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_agents_is_left_out() {
        // Addresses that nothing in this test's process has.
        let parts = |range: Range<usize>| {
            let mut parts = Vec::new();
            without(range, &mut |part| parts.push(part));
            parts
        };
        mapped(0x100, 0x100);
        mapped(0x300, 0x80);
        assert_eq!(parts(0..0x1000), [0..0x100, 0x200..0x300, 0x380..0x1000]);
        assert!(parts(0x180..0x340).into_iter().eq(core::iter::once(0x200..0x300)));
        assert_eq!(parts(0x120..0x140), []);
        unmapped(0x100, 0x10);
        unmapped(0x1f0, 0x10);
        assert_eq!(parts(0x100..0x300), [0x100..0x110, 0x1f0..0x300]);
        unmapped(0x110, 0xe0);
        unmapped(0x300, 0x80);
        assert!(parts(0..0x1000).into_iter().eq(core::iter::once(0..0x1000)));
    }
}
