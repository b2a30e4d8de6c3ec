//! What a recording costs: what the target metered, and what can be seen from here.

use super::clock::Clock;
use super::process::{Process, peak_memory, thread_cpu_ns};
use super::shared::Segment;
use grapnel_trace::Meter;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::meter::{EMPTY_CALLS, Timed, TimedCells};
use std::sync::atomic::{AtomicU64, Ordering};

/// Events of a recording, by what they cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Events {
    /// All of them.
    pub(crate) all: u64,
    /// Those that took a stack.
    given: u64,
}

impl Events {
    #[inline]
    pub(super) fn count(&mut self, event: &HeapEvent) {
        self.all += 1;
        self.given += u64::from(matches!(event, HeapEvent::Alloc { .. } | HeapEvent::ReallocEnd { .. }));
    }
}

/// Processor times of one recording.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Of this thread, while it was at this recording.
    drain_ns: u64,
    /// Of the recorded process, when it was last asked for.
    program_ns: u64,
}

impl Times {
    /// Counts the processor time of `work` as the drain's for this recording.
    pub(super) fn draining<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = thread_cpu_ns();
        let value = work();
        self.drain_ns += thread_cpu_ns().saturating_sub(before);
        value
    }

    /// Asks for the process's processor time, which can be had until it is reaped.
    pub(super) fn ask(&mut self, process: &Process) {
        self.knows(process.cpu_ns().unwrap_or(0));
    }

    /// Takes over the process's processor time from who has asked.
    pub(super) fn knows(&mut self, program_ns: u64) {
        self.program_ns = self.program_ns.max(program_ns);
    }

    /// All that is known of the cost. The segment's numbers may be anything.
    pub(super) fn meter(&self, segment: &Segment, clock: &Clock, events: Events) -> Meter {
        let header = segment.header();
        let cells = &header.meter;
        let of = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let ns = |ticks: f64| (ticks * clock.ns_per_tick()) as u64;
        let timed = |cells: &TimedCells, events| Timed {
            events,
            calls: of(&cells.calls),
            ns: ns(of(&cells.ticks) as f64),
            squares: ns(of(&cells.squares) as f64 * clock.ns_per_tick()),
        };
        Meter {
            given: timed(&cells.given, events.given),
            taken: timed(&cells.taken, events.all - events.given),
            interrupted: of(&cells.interrupted),
            empty_ps: ns(of(&cells.empty_ticks) as f64 * 1000.0 / EMPTY_CALLS as f64),
            setup_ns: of(&cells.startup_ns).saturating_add(ns(of(&cells.setup_ticks) as f64)),
            waited_ns: ns(of(&cells.waited_ticks) as f64),
            program_cpu_ns: self.program_ns,
            drain_cpu_ns: self.drain_ns,
            agent_bytes: of(&header.agent_bytes),
            shared_bytes: segment.touched_bytes(),
            command_bytes: peak_memory(),
        }
    }
}
