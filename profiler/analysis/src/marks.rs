//! Moments that were marked while a program was recorded.

use crate::report::words::harmless;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::reader::Reader;
use grapnel_trace::{Error, Event, Mark};
use std::borrow::Cow;
use std::io::Read;

/// More than these are not kept.
const MOST: usize = 1 << 16;

/// A moment that was marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds since the recording began. All events that came before it have an earlier time.
    pub time_ns: u64,
    /// What it is.
    pub mark: Mark,
}

impl Moment {
    /// What it is called.
    pub fn name(&self) -> Cow<'_, str> {
        match &self.mark {
            Mark::Named(name) => String::from_utf8_lossy(name),
            Mark::Paused => "(paused)".into(),
            Mark::Resumed => "(resumed)".into(),
            Mark::Snapshot => "(snapshot)".into(),
            Mark::Attached => "(attached)".into(),
            Mark::Detached => "(detached)".into(),
            Mark::BeforeUnknown(_) => "(blocks from before are not known)".into(),
            _ => "(unknown)".into(),
        }
    }

    /// What it is called, as it can stand in a terminal.
    pub fn harmless_name(&self) -> String {
        harmless(&self.name()).into_owned()
    }
}

/// Keeps a moment if there is room.
pub(crate) fn keep(moments: &mut Vec<Moment>, time_ns: u64, mark: Mark) {
    if moments.len() < MOST {
        moments.push(Moment { time_ns, mark });
    }
}

/// The moments of a trace, without what else it holds.
///
/// # Errors
/// Where the trace is damaged.
pub fn moments_of<R: Read>(mut reader: Reader<R>) -> Result<Vec<Moment>, Error> {
    const BATCH: usize = 4096;
    let mut batch: Vec<HeapEvent> = Vec::with_capacity(BATCH);
    let mut moments = Vec::new();
    loop {
        batch.clear();
        match reader.next_batch(&mut batch, BATCH)? {
            Some(Event::Mark(mark)) => keep(&mut moments, reader.time(), mark),
            Some(_) => {}
            None if batch.len() == BATCH => {}
            None => return Ok(moments),
        }
    }
}
