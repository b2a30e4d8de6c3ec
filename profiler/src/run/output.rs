//! Where merged events go.

use super::clock::Clock;
use super::merge::Output;
use super::meter::Events;
use super::recording::Within;
use grapnel_analysis::RunningTotals;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::writer::Writer;
use grapnel_trace::{Error, Event, Mark};
use std::fs::File;

/// Events that are counted together.
pub(super) const BATCH: usize = 256;

/// The file, and the totals.
pub(super) struct Out<'a> {
    pub(super) writer: Option<&'a mut Writer<File>>,
    pub(super) error: Option<Error>,
    pub(super) events: &'a mut Events,
    pub(super) totals: Option<&'a mut RunningTotals>,
    pub(super) clock: &'a mut Clock,
    /// Where there is something in it.
    pub(super) within: Option<&'a mut Within>,
    /// Whether the program asked for a snapshot.
    pub(super) snapshot: bool,
    /// Events that are in the file and not yet in the totals.
    pub(super) batch: Vec<HeapEvent>,
}

impl Out<'_> {
    #[inline(always)]
    fn write(&mut self, write: impl FnOnce(&mut Writer<File>) -> Result<(), Error>) {
        if let Some(Err(error)) = self.writer.as_mut().map(|writer| write(writer)) {
            self.give_up(error);
        }
    }

    #[cold]
    #[inline(never)]
    fn give_up(&mut self, error: Error) {
        self.error = Some(error);
        self.writer = None;
    }

    #[inline(always)]
    fn tell(&mut self, ticks: u64) {
        if self.clock.is_due(ticks) {
            self.tell_now(ticks);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_now(&mut self, ticks: u64) {
        if let Some(time) = self.clock.step(ticks) {
            self.tell_time(time);
        }
    }

    fn tell_time(&mut self, time: u64) {
        self.count();
        let time = Event::Time(time);
        self.write(|writer| writer.push(&time));
        if let Some(totals) = &mut self.totals {
            totals.apply(&time);
        }
    }

    /// Brings the totals up to date.
    pub(super) fn count(&mut self) {
        if let Some(totals) = &mut self.totals {
            totals.apply_all(&self.batch);
        }
        self.batch.clear();
    }

    /// Writes and counts an event of the program's own heap.
    #[inline(always)]
    fn put(&mut self, event: HeapEvent) {
        // Not by `write`: a closure that several callers have is not inlined with what it does.
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.push_heap(&event)
        {
            self.give_up(error);
        }
        self.events.count(&event);
        if self.totals.is_some() {
            self.batch.push(event);
            if self.batch.len() == BATCH {
                self.count();
            }
        }
    }

    /// As [`Out::put`], of an event that may be one of an older block. Apart: only here is the event put together in memory.
    #[cold]
    #[inline(never)]
    fn put_whole(&mut self, event: HeapEvent) {
        let event = match &mut self.within {
            Some(within) => within.whole(event),
            None => event,
        };
        self.put(event);
    }
}

impl Output for Out<'_> {
    #[inline(always)]
    fn heap(&mut self, ticks: u64, event: HeapEvent) {
        self.tell(ticks);
        match self.within {
            None => self.put(event),
            Some(_) => self.put_whole(event),
        }
    }

    /// The totals are of the program's own heap.
    #[inline(never)]
    fn in_heap(&mut self, ticks: u64, heap: u32, event: HeapEvent) {
        self.tell(ticks);
        self.write(|writer| writer.push(&Event::InHeap(heap)));
        self.write(|writer| writer.push_heap(&event));
        self.events.count(&event);
    }

    /// The totals have no stacks.
    #[inline]
    fn nodes(&mut self, ticks: u64, first: u32, parent: u32, frames: &[u64]) {
        self.tell(ticks);
        self.write(|writer| writer.push_nodes(first, parent, frames));
    }

    #[inline(never)]
    fn other(&mut self, ticks: u64, event: Event) {
        match event {
            Event::Mark(ref mark) => {
                self.snapshot |= *mark == Mark::Snapshot;
                let time = self.clock.moment(ticks);
                self.tell_time(time);
            }
            _ => self.tell(ticks),
        }
        self.write(|writer| writer.push(&event));
        // What these say is of events to come, and not of those that still wait to be counted.
        if matches!(event, Event::Sampled { .. } | Event::Unsampled { .. }) {
            self.count();
        }
        if let Some(totals) = &mut self.totals {
            totals.apply(&event);
        }
    }
}
