//! The recording of one process: from its segment through the merge of its rings to its trace.

mod asked;
mod older;
mod patience;
mod within;

pub(crate) use older::{Before, Block, Blocks};
pub(super) use within::Within;

use self::patience::{GivenUp, Patience};
use super::clock::Clock;
use super::identity::{ProcessId, pieces, text};
use super::intake::{Intake, Looks, tell_of_room};
use super::merge::{Bounds, Merge};
use super::meter::{Events, Times};
use super::output::{BATCH, Out};
use super::process::{Process, monotonic_ns};
use super::scans::ScanError;
use super::shared::{Segment, futex_wake};
use crate::native::ticks;
use crate::priority::Raised;
use grapnel_analysis::leaks::found::{self, Count};
use grapnel_analysis::report::words::harmless;
use grapnel_analysis::{RunningTotals, Totals};
use grapnel_trace::shared::{failure, scan};
use grapnel_trace::writer::Writer;
use grapnel_trace::{Error, Exit, LeakScan, Meter, ProcessInfo};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// zstd's level: the drain must keep up with the target.
const COMPRESSION: i32 = 1;
/// How long to wait for a process's parent to ask how it ended; only then does the kernel tell others.
const EXIT_PATIENCE: Duration = Duration::from_millis(100);
/// How long a store of one processor may take to be seen by another, with plenty to spare (about 20 microseconds).
const VISIBLE_AFTER_TICKS: u64 = 50_000;
/// How much less nice the drain is while threads wait for it. By equal shares of the processors they may leave it too little: then their rings
/// fill, all wait at a time, and processors stand idle meanwhile.
const LESS_NICE: i32 = 10;
/// How long events may stay in memory before a reader of the file sees them.
const FLUSH_NS: u64 = 300_000_000;
/// The same of what the recording costs.
const METER_NS: u64 = 10_000_000_000;

/// One process while it is recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) index: u32,
    /// Which image of its process id this is, counted from 1.
    image: u32,
    pub(crate) id: ProcessId,
    pub(crate) path: PathBuf,
    /// Events in the trace.
    pub(crate) events: Events,
    times: Times,
    /// `None` when nobody will see them.
    totals: Option<RunningTotals>,
    /// `None` for one of another namespace of process ids, which can't be looked up; within, `None` for one that was
    /// gone before it could be.
    process: Option<Option<Process>>,
    segment: Segment,
    merge: Merge,
    looks: Looks,
    writer: Option<Writer<File>>,
    written: u64,
    error: Option<Error>,
    /// Of CLOCK_MONOTONIC, in nanoseconds.
    started_ns: u64,
    clock: Clock,
    /// What was there before, and may be given back by another address.
    within: Within,
    /// The clock before which all that was written has gone out, but for what waits for others.
    since: u64,
    now_ns: u64,
    flushed_ns: u64,
    metered_ns: u64,
    patience: Patience,
    ended: Cell<Option<Instant>>,
    /// The program asked for a snapshot.
    wants_snapshot: bool,
    /// What the look for leaks found, if there was one.
    leaks: Option<Result<[Count; 4], ScanError>>,
}

/// What a finished recording leaves.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) id: ProcessId,
    pub(crate) image: u32,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Events in the trace.
    pub(crate) events: u64,
    /// What it cost.
    pub(crate) meter: Meter,
    /// Of a recording whose totals nobody will see, only how many events were lost and how long it took.
    pub(crate) totals: Totals,
    /// They are estimates, from some of the allocations.
    pub(crate) sampled: bool,
    pub(crate) command: Vec<Vec<u8>>,
    /// Why the trace is not complete.
    pub(crate) problem: Option<String>,
    /// What a person may want to know of it.
    pub(crate) note: Option<String>,
    /// What the look for leaks found, if there was one, by kinds.
    pub(crate) leaks: Option<Result<[Count; 4], ScanError>>,
}

impl Recording {
    /// Begins a trace in `file`, which lies at `path`. `totals`: whether they are wanted.
    pub(crate) fn new(
        index: u32,
        image: u32,
        segment: Segment,
        info: &ProcessInfo,
        file: io::Result<File>,
        path: &Path,
        totals: bool,
    ) -> Self {
        let writer = file.map_err(Error::from).and_then(|file| Writer::new(file, info, COMPRESSION));
        // A target can't claim to have begun in the future.
        let started_ns = segment.header().started_ns.load(Ordering::Relaxed).min(monotonic_ns());
        let id = ProcessId::of(&segment);
        let (writer, error) = match writer {
            Ok(writer) => (Some(writer), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            index,
            image,
            id,
            path: path.to_owned(),
            events: Events::default(),
            times: Times::default(),
            totals: totals.then(RunningTotals::default),
            process: id.is_ours().then(|| Process::open(info.pid)),
            segment,
            merge: Merge::default(),
            looks: Looks::default(),
            writer,
            written: 0,
            error,
            started_ns,
            clock: Clock::new(started_ns),
            within: Within::default(),
            since: 0,
            now_ns: 0,
            flushed_ns: 0,
            metered_ns: 0,
            patience: Patience::default(),
            ended: Cell::new(None),
            wants_snapshot: false,
            leaks: None,
        }
    }

    /// Whether the process has ended, and how can be told or will never be.
    pub(crate) fn has_ended(&self) -> bool {
        let process = match &self.process {
            // Until PROGRAM's own end.
            None => return false,
            Some(None) => return true,
            Some(Some(process)) => process,
        };
        if !process.has_ended() {
            return false;
        }
        let since = self.ended.get().unwrap_or_else(Instant::now);
        self.ended.set(Some(since));
        process.exit().is_some() || since.elapsed() > EXIT_PATIENCE
    }

    /// What the process says is wrong with its recording.
    pub(crate) fn failure(&self) -> Option<String> {
        let code = self.segment.header().failure.load(Ordering::Acquire);
        (code != 0 && code != failure::NOTE).then(|| self.message())
    }

    fn message(&self) -> String {
        let message = text(&self.segment.header().message);
        harmless(&String::from_utf8_lossy(message.strip_suffix(b"\0").unwrap_or(&message))).into_owned()
    }

    /// Takes what is in the rings and writes what is due. Whoever waits for room goes on meanwhile. Returns how many words
    /// there were.
    pub(crate) fn drain(&mut self) -> usize {
        let mut times = std::mem::take(&mut self.times);
        let words = times.draining(|| self.pass());
        self.times = times;
        self.write_meter();
        words
    }

    /// Takes no more than the rings are full of: other processes have a drain too.
    fn pass(&mut self) -> usize {
        // Before the rings are looked at: what they do not show yet comes later than this.
        let now = ticks();
        self.look();
        let press = self.looks.press();
        let _raised = press.then(|| Raised::by(LESS_NICE));
        if let Some(writer) = &mut self.writer {
            writer.hurry(press);
        }
        let before = now.saturating_sub(VISIBLE_AFTER_TICKS);
        let last_ns = self.now_ns;
        self.now_ns = monotonic_ns().saturating_sub(self.started_ns);
        let GivenUp { clocks, overdue } =
            self.patience.pass(now, self.now_ns, last_ns, self.clock.ns_per_tick());
        // A clock that was set back (by a long sleep of the machine) must not hold things up for ever.
        let horizon = if clocks { u64::MAX } else { before };
        let under_way = !clocks && self.looks.count_of_open() != 0;
        let bounds = Bounds { since: self.since, horizon, overdue, under_way };
        let (mut words, mut done) = self.merge_ready(bounds);
        if clocks && done == 0 {
            let (more, others) = self.merge_ready(Bounds { overdue: u64::MAX, ..bounds });
            words += more;
            done += others;
        }
        self.since = self.merge.held_since().unwrap_or(u64::MAX).min(before);
        if done != 0 || self.merge.is_empty() {
            self.patience.got_on(self.now_ns);
        }
        if self.now_ns - self.flushed_ns > FLUSH_NS {
            self.flushed_ns = self.now_ns;
            self.flush();
        }
        words
    }

    /// Wakes the threads that wait for room, whether there is or not.
    pub(super) fn wake(&self) {
        (0..self.segment.count_of_rings()).filter_map(|ring| self.segment.ring(ring)).for_each(tell_of_room);
    }

    fn flush(&mut self) {
        if let Some(Err(error)) = self.writer.as_mut().map(Writer::flush) {
            self.fail(error);
        }
    }

    /// Now and then, writes down what the recording costs: it may never come to its end.
    fn write_meter(&mut self) {
        if let Some(Some(process)) = &self.process {
            self.times.ask(process);
        }
        if self.now_ns - self.metered_ns < METER_NS {
            return;
        }
        self.metered_ns = self.now_ns;
        let meter = self.times.meter(&self.segment, &self.clock, self.events);
        let now = self.now_ns;
        if let Some(Err(error)) = self.writer.as_mut().map(|writer| writer.meter(&meter, now)) {
            self.fail(error);
        }
    }

    /// The totals so far, if they are wanted.
    pub(crate) fn totals(&self) -> Totals {
        self.totals.as_ref().map(RunningTotals::totals).unwrap_or_default()
    }

    /// Looks at the rings that are there.
    fn look(&mut self) {
        let mapped = self.segment.map_rings();
        let seen = self.looks.look(&self.segment).map_err(io::Error::other);
        if let Err(error) = mapped.and(seen) {
            self.fail(Error::Io(error));
        }
    }

    /// Writes what lies before the horizon, of what the last look found. Returns how many words were taken out of rings, and
    /// how many records were used up.
    fn merge_ready(&mut self, bounds: Bounds) -> (usize, usize) {
        let Self { merge, segment, looks, writer, events, totals, clock, within, .. } = self;
        clock.measure();
        // The merge asks for words of rings that it knows.
        if let Some(last) = segment.count_of_rings().checked_sub(1) {
            merge.queue(last);
        }
        let mut intake = Intake { segment, looks, words: 0 };
        let batch = Vec::with_capacity(BATCH);
        let (writer, totals) = (writer.as_mut(), totals.as_mut());
        let within = Some(within).filter(|within| !within.is_empty());
        let mut out = Out { writer, error: None, events, totals, clock, within, snapshot: false, batch };
        let merged = merge.run(bounds, &mut intake, &mut out);
        out.count();
        intake.take_what_is_in_the_way(merge);
        let words = intake.words;
        self.wants_snapshot |= out.snapshot;
        if let Some(error) = out.error {
            self.fail(error);
        }
        let done = merged.unwrap_or_else(|bad| {
            self.fail(Error::Io(io::Error::other(bad)));
            0
        });
        (words, done)
    }

    /// Writes all that is in the rings of a process that writes no more, in the best order there is; what comes before the clock
    /// `overdue` also without what it waits for.
    ///
    /// No more is taken than rings have room for: somebody else who has opened the session may write on for as long as he likes.
    fn merge_all(&mut self, overdue: u64) {
        let bounds = Bounds { since: self.since, horizon: u64::MAX, overdue, under_way: false };
        let mut room = None;
        loop {
            self.look();
            let most = room.get_or_insert_with(|| self.looks.room(&self.segment));
            let (words, done) = self.merge_ready(bounds);
            if (words, done) == (0, 0) || words > *most {
                return;
            }
            *most -= words;
        }
    }

    /// Whether the process is about to end, and waits to be looked through.
    pub(crate) fn waits_for_scan(&self) -> bool {
        self.segment.header().scan.load(Ordering::Acquire) == scan::ASKED
    }

    /// Whether there may be blocks that are older than the recording.
    pub(crate) fn began_before(&self) -> bool {
        self.segment.header().forked.load(Ordering::Relaxed) != 0
    }

    /// Takes all that is in the rings of a process that stands still. False when a thread is in the middle of an event.
    pub(crate) fn take_still(&mut self) -> bool {
        self.merge_all(0);
        self.looks.count_of_open() == 0 && self.merge.is_empty()
    }

    /// Writes down what the look for leaks found, and lets the process end.
    pub(crate) fn looked_through(&mut self, result: Result<LeakScan, ScanError>) {
        self.leaks = Some(result.map(|found| {
            if let Some(Err(error)) = self.writer.as_mut().map(|writer| writer.leaks(&found)) {
                self.fail(error);
            }
            found::totals(&found)
        }));
        let state = &self.segment.header().scan;
        state.store(scan::DONE, Ordering::Release);
        futex_wake(state);
    }

    /// Nothing more can be written; what is in the file stays good.
    fn fail(&mut self, error: Error) {
        if let Some(writer) = self.writer.take() {
            self.written = writer.written();
        }
        self.error.get_or_insert(error);
    }

    /// The process will write nothing more: takes the rest and ends the trace.
    pub(crate) fn finish(mut self, ended: Option<(Exit, u64)>) -> Finished {
        let mut times = std::mem::take(&mut self.times);
        times.draining(|| {
            self.merge_all(u64::MAX);
            self.flush();
        });
        if let Some(Some(process)) = &self.process {
            times.ask(process);
        }
        times.knows(ended.map_or(0, |(_, cpu_ns)| cpu_ns));
        let meter = times.meter(&self.segment, &self.clock, self.events);
        self.now_ns = monotonic_ns().saturating_sub(self.started_ns);
        // A thread that was killed between taking a number and writing its event lost nothing: the call never came back.
        let missing = self.merge.missing().saturating_sub(self.looks.count_of_open() as u64);
        let lost = self.segment.header().lost.load(Ordering::Relaxed).saturating_add(missing);
        let exit = ended.map(|(exit, _)| exit);
        let exit = exit.or_else(|| self.process.as_ref().and_then(|process| process.as_ref()?.exit()));
        let duration = self.now_ns;
        if let Some(mut writer) = self.writer.take() {
            self.written = writer.written();
            let before = self.written;
            let metered = writer.meter(&meter, duration);
            match metered.and_then(|()| writer.finish(exit, duration, lost)) {
                Ok(file) => self.written = file.metadata().map_or(before, |metadata| metadata.len()),
                Err(error) => self.fail(error),
            }
        }
        let sampled = matches!(self.totals, Some(RunningTotals::Sampled(_)));
        let mut totals = self.totals();
        totals.lost_events = lost;
        totals.duration_ns = duration;
        let problem = match (&self.error, self.failure()) {
            (Some(error), _) => {
                Some(format!("{}: {error}; the trace ends after {} bytes", self.path.display(), self.written))
            }
            (None, None) => match self.segment.header().bad_stacks.load(Ordering::Relaxed) {
                0 => match self.merge.lost_frames() {
                    0 => None,
                    lost => Some(format!(
                        "there are more stacks than a trace can number; {lost} frames of later ones are left out"
                    )),
                },
                bad => Some(format!("{bad} stacks differ from those of a full walk; please report it")),
            },
            (None, failure) => failure,
        };
        let note = self.segment.header().failure.load(Ordering::Acquire) == failure::NOTE;
        let note = note.then(|| self.message());
        let command = pieces(&text(&self.segment.header().command));
        Finished {
            id: self.id,
            image: self.image,
            path: self.path,
            bytes: self.written,
            events: self.events.all,
            totals,
            meter,
            sampled,
            command,
            problem,
            note,
            leaks: self.leaks,
        }
    }
}
