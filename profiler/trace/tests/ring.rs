//! The ring between two threads. `tests/loom` has all interleavings of short runs.

use grapnel_trace::ring::{Consumer, Corrupt, Full, Producer, RingControl};
use std::sync::atomic::{AtomicU64, Ordering};

fn ring(words: usize) -> (RingControl, Vec<AtomicU64>) {
    (RingControl::default(), (0..words).map(|_| AtomicU64::new(0)).collect())
}

#[test]
fn full_leaves_the_ring_as_it_was() {
    let (control, words) = ring(8);
    let mut producer = Producer::new(&control, &words);
    let consumer = Consumer::new(&control, &words);
    producer.push([1, 2, 3]).unwrap();
    producer.push([4, 5, 6]).unwrap();
    assert_eq!(producer.push([7, 8, 9]), Err(Full));
    let mut out = Vec::new();
    assert_eq!(consumer.drain_into(&mut out), Ok(6));
    producer.push([7, 8, 9]).unwrap();
    consumer.drain_into(&mut out).unwrap();
    assert_eq!(out, (1..=9).collect::<Vec<_>>());
}

#[test]
fn put_goes_around_as_push_does() {
    let (control, words) = ring(8);
    let mut producer = Producer::new(&control, &words);
    let consumer = Consumer::new(&control, &words);
    let mut out = Vec::new();
    for n in 0..50 {
        assert!(producer.position() <= producer.last_start(3) || producer.has_room(3));
        producer.put([n, !n, n ^ 7]);
        assert_eq!(producer.last_start(8), 3 * n / 6 * 6, "{n}");
        if n % 2 == 1 {
            consumer.drain_into(&mut out).unwrap();
        }
    }
    for (n, record) in (0..).zip(out.chunks(3)) {
        assert_eq!(record, [n, !n, n ^ 7]);
    }
    assert_eq!(out.len(), 150);
}

#[test]
fn what_is_staged_is_nobodys_until_it_is_published() {
    let (control, words) = ring(8);
    let mut producer = Producer::new(&control, &words);
    let consumer = Consumer::new(&control, &words);
    let mut out = Vec::new();
    let mut all = Vec::new();
    // Begins at each place of the ring, also where what is staged goes around.
    for n in (0..200).step_by(10) {
        let count = (n / 10) % 7;
        assert!(producer.has_room(1 + count));
        let staged: Vec<u64> = (n + 1..=n + count).collect();
        producer.stage_all(1, staged.into_iter());
        assert_eq!(consumer.drain_into(&mut out), Ok(0));
        producer.stage(0, n);
        producer.publish(1 + count);
        assert_eq!(consumer.drain_into(&mut out), Ok(1 + count as usize));
        all.extend(n..=n + count);
        assert_eq!(out, all);
    }
}

#[test]
fn what_is_taken_by_pieces_is_the_same() {
    let (control, words) = ring(8);
    let mut producer = Producer::new(&control, &words);
    let consumer = Consumer::new(&control, &words);
    let mut out = Vec::new();
    for start in [1, 8, 15] {
        producer
            .push_slice(&[start, start + 1, start + 2, start + 3, start + 4, start + 5, start + 6])
            .unwrap();
        for piece in [2, 3, 2, 0] {
            assert_eq!(consumer.drain_some_into(&mut out, piece), Ok(piece));
        }
    }
    assert_eq!(out, (1..=21).collect::<Vec<_>>());
}

#[test]
fn two_threads_agree() {
    let (control, words) = ring(64);
    let total = 200_000u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut producer = Producer::new(&control, &words);
            for n in 0..total {
                while producer.push([n, !n, n ^ 7]).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let consumer = Consumer::new(&control, &words);
        let mut out = Vec::new();
        while out.len() < 3 * total as usize {
            if consumer.drain_into(&mut out).unwrap() == 0 {
                std::thread::yield_now();
            }
        }
        for (n, record) in out.chunks(3).enumerate() {
            let n = n as u64;
            assert_eq!(record, [n, !n, n ^ 7]);
        }
    });
}

#[test]
fn counters_that_lie_are_noticed() {
    let (control, words) = ring(8);
    control.tail.store(100, Ordering::Relaxed);
    let result = Consumer::new(&control, &words).drain_into(&mut Vec::new());
    assert_eq!(result, Err(Corrupt { capacity: 8, tail: 100, head: 0 }));
}
