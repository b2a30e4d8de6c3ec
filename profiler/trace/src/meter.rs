//! What a recording costs: metered while it goes on, and kept in the trace.
//!
//! In the target some calls are timed, by the processor's clock, and added up in shared memory ([`MeterCells`]). The
//! command adds what it knows itself, turns ticks into nanoseconds, and writes it down ([`Meter`]): now and then, and at
//! the end. The later one replaces the earlier.

use crate::varint::{get, put};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

/// So many empty calls are timed together: one takes only some dozen ticks.
pub const EMPTY_CALLS: u64 = 16;

/// Timed calls of one class. All zeroes at the start.
#[repr(C)]
#[derive(Debug, Default)]
pub struct TimedCells {
    /// How many.
    pub calls: AtomicU64,
    /// The ticks that they took.
    pub ticks: AtomicU64,
    /// The squares of these, added up.
    pub squares: AtomicU64,
}

impl TimedCells {
    /// Adds a call.
    pub fn add(&self, ticks: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.ticks.fetch_add(ticks, Ordering::Relaxed);
        self.squares.fetch_add(ticks.saturating_mul(ticks), Ordering::Relaxed);
    }
}

/// What a process meters of itself, in shared memory. All zeroes at the start.
#[repr(C)]
#[derive(Debug, Default)]
pub struct MeterCells {
    /// Calls that took a stack: those that gave a block.
    pub given: TimedCells,
    /// Calls that did not: those that give a block back, or to a `realloc`.
    pub taken: TimedCells,
    /// Calls that were timed in vain: the thread lost its processor meanwhile.
    pub interrupted: AtomicU64,
    /// The least ticks that [`EMPTY_CALLS`] hooked calls took which recorded nothing. This comes on top of what is timed.
    pub empty_ticks: AtomicU64,
    /// Ticks in which threads waited for room in their rings.
    pub waited_ticks: AtomicU64,
    /// Ticks that threads took to begin recording, and to take in libraries that were loaded.
    pub setup_ticks: AtomicU64,
    /// Nanoseconds that the agent took to come up.
    pub startup_ns: AtomicU64,
}

/// Calls of one class, of which some were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timed {
    /// How many of them were recorded.
    pub events: u64,
    /// How many of those were timed.
    pub calls: u64,
    /// How many nanoseconds these took.
    pub ns: u64,
    /// The squares of that, added up.
    pub squares: u64,
}

/// What a recording cost until some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Calls that took a stack.
    pub given: Timed,
    /// Calls that did not.
    pub taken: Timed,
    /// Calls that were timed in vain.
    pub interrupted: u64,
    /// What each call takes besides, in picoseconds.
    pub empty_ps: u64,
    /// Nanoseconds that the agent took to come up, and threads to begin.
    pub setup_ns: u64,
    /// Nanoseconds in which threads waited for room in their rings.
    pub waited_ns: u64,
    /// Processor time of the recorded process, in nanoseconds; 0 where it can't be asked for.
    pub program_cpu_ns: u64,
    /// Processor time that the drain took for this process, in nanoseconds.
    pub drain_cpu_ns: u64,
    /// Bytes that the agent mapped for itself in the process, touched or not.
    pub agent_bytes: u64,
    /// Bytes of the memory that the process shares with the command, of what was touched.
    pub shared_bytes: u64,
    /// The most memory that the command had, what it shares included, in bytes.
    pub command_bytes: u64,
}

impl Meter {
    /// How many numbers there are.
    const NUMBERS: usize = 17;

    fn numbers(&mut self) -> [&mut u64; Self::NUMBERS] {
        let Self { given, taken, .. } = self;
        [
            &mut given.events,
            &mut given.calls,
            &mut given.ns,
            &mut given.squares,
            &mut taken.events,
            &mut taken.calls,
            &mut taken.ns,
            &mut taken.squares,
            &mut self.interrupted,
            &mut self.empty_ps,
            &mut self.setup_ns,
            &mut self.waited_ns,
            &mut self.program_cpu_ns,
            &mut self.drain_cpu_ns,
            &mut self.agent_bytes,
            &mut self.shared_bytes,
            &mut self.command_bytes,
        ]
    }

    /// The content of a block: the numbers as varints, in the order of the fields.
    pub fn encode(mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.numbers().into_iter().for_each(|number| put(&mut out, *number));
        out
    }

    /// The inverse; numbers that are not there are 0, and what stands behind the last is left alone.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut meter, mut at) = (Self::default(), 0);
        for number in meter.numbers() {
            if at < bytes.len() {
                *number = get(bytes, &mut at)?;
            }
        }
        Some(meter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_comes_back() {
        let mut meter = Meter::default();
        for (at, number) in meter.numbers().into_iter().enumerate() {
            *number = u64::MAX >> at;
        }
        let bytes = meter.encode();
        assert_eq!(Meter::decode(&bytes), Some(meter));
        // One of a later version, which knows more.
        assert_eq!(Meter::decode(&[&bytes[..], &[7, 7]].concat()), Some(meter));
        assert_eq!(Meter::decode(&[]), Some(Meter::default()));
        assert_eq!(Meter::decode(&bytes[..bytes.len() - 1]), None);
    }
}
