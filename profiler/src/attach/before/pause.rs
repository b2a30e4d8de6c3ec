//! Waiting for a moment at which no thread is in the middle of `malloc`.
//!
//! What such a thread is about to get, or has half given back, would be counted wrongly: its call is older than the hooks. So
//! those that stand there go on for a moment, while all others stand, and stop again. They come out by themselves, unless they
//! wait for one that stands elsewhere: then all go on.

use super::super::freeze::{FreezeError, Freezer, Frozen};
use super::super::memory::Memory;
use super::super::native::Registers;
use super::{Heap, View};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How long threads go on at a time: longer each time up to this, since on a busy machine they have to wait for a processor.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(4);
/// The longest that all this may take.
const PATIENCE: Duration = Duration::from_millis(30);
/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Pause {
    /// No thread is in the middle of it.
    Settled,
    /// Some are, still.
    Busy,
}

/// Has all threads come out of `malloc`, as far as they do so soon and may run. `except`: a thread that isn't the program's.
pub(in super::super) fn settle(
    heap: &Heap,
    memory: &Memory,
    pid: u32,
    freezer: &mut Freezer,
    frozen: &mut Frozen,
    (except, may_run): (i32, bool),
) -> Result<Pause, FreezeError> {
    let view = View { pid, memory };
    let deadline = may_run.then(|| Instant::now() + PATIENCE);
    let mut moment = SHORTEST;
    loop {
        let is_one = |(tid, registers): (i32, &Registers)| heap.calls.has(view, registers).then_some(tid);
        let inside: HashSet<i32> = frozen.registers().filter_map(is_one).collect();
        if inside.is_empty() {
            return Ok(Pause::Settled);
        }
        if deadline.is_none_or(|deadline| Instant::now() > deadline) {
            return Ok(Pause::Busy);
        }
        freezer.let_run(frozen, |tid| inside.contains(&tid), moment, except)?;
        moment = (moment * 5 / 4).min(LONGEST);
    }
}
