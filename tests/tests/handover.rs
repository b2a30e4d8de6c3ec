//! The order of a trace against what truly happened, where threads take each other's addresses as fast as they can.
//!
//! An order of all events in which each thread's events stand as that thread made them, and in which each block is given
//! out at an address that is free and given back while it is live, is one in which they could have happened: every live
//! set of it is one that could have been. Where all threads stood still there is but one, and the program says how large it
//! was.

use grapnel_analysis::LiveTotals;
use grapnel_tests::run::Case;
use grapnel_trace::Event;
use grapnel_trace::reader::Reader;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;

/// As in `handover.c`.
const THREADS: u64 = 6;
const SMALLEST: u64 = 32;
const NUMBERS: u64 = 16;
const MARK: u64 = 4 << 20;

/// The last block of a thread of the program: which thread that is, and the block's number.
type Last = (u64, u64);

/// Each thread's blocks come in the order in which it asked for them.
fn check_order(last: &mut HashMap<u32, Last>, thread: u32, size: u64) {
    let (of, number) = ((size - SMALLEST) % THREADS, (size - SMALLEST) / THREADS);
    let expected = match last.get(&thread) {
        None => (of, 0),
        Some(&(of, number)) => (of, (number + 1) % NUMBERS),
    };
    assert_eq!((of, number), expected, "thread {thread}: its number, and its block's (left: found)");
    last.insert(thread, (of, number));
}

#[test]
fn every_live_set_is_one_that_was() {
    // Threads keep what they free for themselves, unless they are told not to: then the next thread gets it at once.
    let shared = "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1";
    for tunables in [shared, shared, shared, ""] {
        let recorded = Case::ours("handover").env("GLIBC_TUNABLES", tunables).recorded();
        assert!(recorded.outcome.status.success(), "{}", recorded.outcome.err());
        let held: Vec<i64> =
            recorded.outcome.out().lines().map(|line| line.parse().expect("a number")).collect();
        assert_eq!(held.len(), 11);
        let file = File::open(recorded.trace()).expect("the trace is there");
        let mut reader = Reader::new(BufReader::new(file)).expect("a trace");
        let mut live = LiveTotals::new();
        let mut hands = Vec::new();
        let mut last: HashMap<u32, Last> = HashMap::new();
        let mut found = Vec::new();
        while let Some(event) = reader.next_event().expect("whole records") {
            match event {
                Event::Thread { index, ref name, .. } if name.starts_with(b"hand ") => hands.push(index),
                Event::Alloc { size, .. } if (MARK..MARK + 100).contains(&size) => {
                    assert_eq!(size - MARK, found.len() as u64, "marks come in order");
                    found.push(live.totals().live_bytes as i64);
                }
                Event::Alloc { thread, size, .. } | Event::ReallocEnd { thread, size, .. }
                    if hands.contains(&thread) =>
                {
                    check_order(&mut last, thread, size);
                }
                _ => {}
            }
            live.apply(&event);
            assert_eq!(live.totals().inconsistent_events, 0, "{event:?}");
        }
        assert_eq!(reader.end().map(|end| end.lost), Some(0));
        // What else lives, lives from before the first mark on.
        let grown: Vec<i64> = found.iter().map(|bytes| bytes - found[0]).collect();
        assert_eq!(grown, held, "live bytes at each mark (left: in the trace)");
        assert_eq!(last.len() as u64, THREADS);
    }
}
