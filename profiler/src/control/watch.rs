//! Looks now and then whether a snapshot is due: live bytes beyond a threshold, memory that comes to its end.

use super::desk::{Desk, Reply};
use super::dumps::Dumps;
use super::memory::Memory;
use super::protocol::{Refusal, Request, Status};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(50);

/// What snapshots are due on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Triggers {
    /// So many live bytes, and each time so many more.
    pub(crate) bytes: Option<u64>,
    /// Memory that is about to be used up.
    pub(crate) memory: bool,
}

/// Snapshots of all processes that are recorded.
///
/// # Errors
/// When the recording is over.
pub(crate) fn dump_all(desk: &Desk, dumps: &Dumps) -> Result<(), Refusal> {
    for process in status(desk)?.processes {
        dump(desk, dumps, process.pid);
    }
    Ok(())
}

fn dump(desk: &Desk, dumps: &Dumps, pid: u32) {
    // It may have ended just now.
    if let Ok(Reply::Snapshot(source)) = desk.ask(Request::Snapshot { pid }) {
        dumps.write(source);
    }
}

fn status(desk: &Desk) -> Result<Status, Refusal> {
    match desk.ask(Request::Status {})? {
        Reply::Status(status) => Ok(status),
        _ => Err(Refusal::Busy),
    }
}

/// Looks until the recording is over. A thread's work.
pub(crate) fn watch(desk: &Arc<Desk>, dumps: &Dumps, triggers: Triggers, program: u32) {
    let memory = triggers.memory.then(|| Memory::of(program));
    let (mut due, mut was_short) = (HashMap::new(), false);
    loop {
        std::thread::sleep(EVERY);
        let status = match status(desk) {
            Ok(status) => status,
            Err(Refusal::Over) => return,
            Err(_) => continue,
        };
        if let Some(step) = triggers.bytes {
            // Another process may have the id of one that has ended.
            due.retain(|pid, _| status.processes.iter().any(|process| process.pid == *pid));
            for process in &status.processes {
                let live = process.totals.map_or(0, |totals| totals.live_bytes);
                let next = due.entry(process.pid).or_insert(step);
                if live >= *next {
                    *next = live.saturating_add(step);
                    dump(desk, dumps, process.pid);
                }
            }
        }
        let is_short = memory.as_ref().is_some_and(Memory::is_short);
        if is_short && !was_short && dump_all(desk, dumps) == Err(Refusal::Over) {
            return;
        }
        was_short = is_short;
    }
}
