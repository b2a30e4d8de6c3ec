//! Work on many items, by some threads, with a progress bar on a terminal.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::tally::Judges;

/// How many items a thread takes at a time.
const BATCH: usize = 64;

/// What is judged with, how often, and by how many threads.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How many random states each window is run from.
    pub states: u64,
    /// How many threads.
    pub jobs: usize,
}

/// Lets each thread fold its share of the numbers `0 .. count` into an `R`, with judges of its own.
///
/// # Errors
///
/// If the judges can't be had.
pub fn fold<R: Default + Send>(
    effort: Effort,
    count: usize,
    work: impl Fn(usize, &mut Judges, &mut R) + Sync,
) -> Result<Vec<R>, String> {
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len}, {eta} left");
    let bar =
        ProgressBar::new(count as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let next = AtomicUsize::new(0);
    let thread = || {
        let mut judges = Judges::new(effort.states)?;
        let mut result = R::default();
        loop {
            let first = next.fetch_add(BATCH, Ordering::Relaxed);
            if first >= count {
                return Ok(result);
            }
            let batch = first..count.min(first + BATCH);
            bar.inc(batch.len() as u64);
            for number in batch {
                work(number, &mut judges, &mut result);
            }
        }
    };
    let results: Vec<Result<R, String>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..effort.jobs.max(1)).map(|_| scope.spawn(thread)).collect();
        let ended = |_| Err("a thread ended early".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(ended)).collect()
    });
    bar.finish_and_clear();
    results.into_iter().collect()
}
