//! What clients ask of one recording.

use super::{COMPRESSION, Recording};
use crate::control::{Figures, ProcessStatus, Refusal, SnapshotSource};
use crate::native::ticks;
use crate::run::identity::{pieces, text};
use crate::run::process::monotonic_ns;
use grapnel_analysis::{RunningTotals, Totals};
use grapnel_trace::writer::Writer;
use grapnel_trace::{Event, LeakScan, Mark};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the drain may take to write down what came before a request. It is held up by events that wait for one that a thread is
/// in the middle of, which has no processor just then.
const CATCH_UP: Duration = Duration::from_millis(100);

impl Recording {
    /// How it stands.
    pub(crate) fn status(&self) -> ProcessStatus {
        let header = self.segment.header();
        let text_of = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let totals = self.totals.is_some().then(|| self.totals());
        ProcessStatus {
            pid: self.id.pid(),
            command: pieces(&text(&header.command)).iter().map(text_of).collect(),
            trace: self.path.to_string_lossy().into_owned(),
            duration_ns: monotonic_ns().saturating_sub(self.started_ns),
            events: self.events.all,
            trace_bytes: self.written_so_far(),
            totals: totals.as_ref().map(figures),
            sampled: matches!(self.totals, Some(RunningTotals::Sampled(_))),
            lost_events: header.lost.load(Ordering::Relaxed),
            paused: self.is_paused(),
        }
    }

    /// Bytes of the trace.
    fn written_so_far(&self) -> u64 {
        self.writer.as_ref().map_or(self.written, Writer::written)
    }

    /// Writes down all that happened before now, as far as that can be done soon.
    fn catch_up(&mut self) {
        let (now, start) = (ticks(), Instant::now());
        loop {
            self.drain();
            if self.since >= now || start.elapsed() > CATCH_UP {
                return;
            }
            // The processor's own buffers, and others' events, take a moment.
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Marks this moment. Returns its time.
    pub(crate) fn mark(&mut self, mark: Mark) -> u64 {
        self.catch_up();
        let time = self.clock.moment(ticks());
        for event in [Event::Time(time), Event::Mark(mark)] {
            if let Some(totals) = &mut self.totals {
                totals.apply(&event);
            }
            if let Some(Err(error)) = self.writer.as_mut().map(|writer| writer.push(&event)) {
                self.fail(error);
            }
        }
        time
    }

    /// Whether it is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.segment.header().paused.load(Ordering::Relaxed) != 0
    }

    /// Begins or ends a pause. The process's threads notice when they next come to look.
    pub(crate) fn pause(&mut self, paused: bool) {
        let word = &self.segment.header().paused;
        if word.swap(u32::from(paused), Ordering::AcqRel) != u32::from(paused) {
            self.mark(if paused { Mark::Paused } else { Mark::Resumed });
        }
    }

    /// Writes down what a look for leaks found, and gives the trace with that in it.
    pub(crate) fn looked_at(&mut self, found: &LeakScan) -> Result<SnapshotSource, Refusal> {
        if let Some(Err(error)) = self.writer.as_mut().map(|writer| writer.leaks(found)) {
            self.fail(error);
        }
        self.snapshot()
    }

    /// The trace up to now.
    pub(crate) fn snapshot(&mut self) -> Result<SnapshotSource, Refusal> {
        self.catch_up();
        self.flush();
        let duration = self.now_ns;
        let lost = self.segment.header().lost.load(Ordering::Relaxed).saturating_add(self.merge.missing());
        let meter = self.times.meter(&self.segment, &self.clock, self.events);
        let Some(writer) = &self.writer else {
            return Err(Refusal::NoTrace(self.error.as_ref().map(ToString::to_string).unwrap_or_default()));
        };
        let no_trace = |error: &dyn std::fmt::Display| Refusal::NoTrace(error.to_string());
        let output = writer.get_ref();
        if !is_plain(output) {
            return Err(Refusal::NotAFile(self.path.display().to_string()));
        }
        let file = opened_anew(output).map_err(|error| no_trace(&error))?;
        let end = || {
            let mut end = Writer::resume(Vec::new(), duration, COMPRESSION)?;
            end.meter(&meter, duration)?;
            end.finish(None, duration, lost)
        };
        let end = end().map_err(|error: grapnel_trace::Error| no_trace(&error))?;
        Ok(SnapshotSource { file, len: writer.written(), end, path: self.path.clone() })
    }

    /// The trace until now, for reading, and its length.
    pub(crate) fn trace_so_far(&mut self) -> io::Result<(File, u64)> {
        self.flush();
        let Some(writer) = &self.writer else {
            return Err(io::Error::other("it came to its end early"));
        };
        let output = writer.get_ref();
        if !is_plain(output) {
            return Err(io::Error::other("it is no plain file; give one by -o"));
        }
        Ok((opened_anew(output)?, writer.written()))
    }

    /// Whether the program asked for a snapshot since this was last asked.
    pub(crate) fn take_wish(&mut self) -> bool {
        std::mem::take(&mut self.wants_snapshot)
    }
}

/// Whether what is written to a file can be read back.
fn is_plain(file: &File) -> bool {
    file.metadata().is_ok_and(|facts| facts.is_file())
}

/// The same file with a position of its own. By the descriptor: the name may be another file's by now.
fn opened_anew(file: &File) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn figures(totals: &Totals) -> Figures {
    Figures {
        allocations: totals.allocations,
        frees: totals.frees,
        reallocations: totals.reallocations,
        allocated_bytes: totals.allocated_bytes,
        live_blocks: totals.live_allocations,
        live_bytes: totals.live_bytes,
        peak_bytes: totals.peak_bytes,
    }
}
