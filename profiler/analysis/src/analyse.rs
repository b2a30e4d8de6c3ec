//! One pass over a trace, from its events to an [`Analysis`].
//!
//! Memory is bounded by what is live at once, by the distinct frames, and by the distinct stacks that
//! allocate; it does not grow with the number of events. Another thread reads ahead.

use crate::ahead::{Ahead, Done, Stretch};
use crate::heaps::{HeapAnalysis, Heaps};
use crate::leaks::Found;
use crate::live::{LiveBlocks, LiveSample, Totals, Watcher};
use crate::mappings::{MappingAnalysis, Mappings};
use crate::marks::{self, Moment};
use crate::merge::canonical_nodes;
use crate::mismatches::{Mismatch, Mismatches};
use crate::modules::Modules;
use crate::sites::{Site, Sites};
use crate::stacks::Stacks;
use crate::symbols::Symbols;
use crate::weight::Sampling;
use grapnel_trace::event::{Exit, ProcessInfo};
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::reader::Reader;
use grapnel_trace::{Error, Event, Mark, Meter, Source};
use std::io::Read;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

/// More live blocks than we keep, to within a batch: what is kept of them alone may be 20 GB.
const MAX_LIVE: u64 = 1 << 28;

/// A record that was read well and can't be true: the trace was not written by grapnel, or a bug wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Node ids do not come in order.
    #[error("stack node {id} comes where node {expected} should")]
    NodeOrder {
        /// The id that came.
        id: u32,
        /// The id that was due.
        expected: u64,
    },
    /// A node is not behind its parent.
    #[error("stack node {id} has the later node {parent} as its parent")]
    NodeParent {
        /// The node.
        id: u32,
        /// What it names as its parent.
        parent: u32,
    },
    /// An event names a stack that was not described before.
    #[error("an event has the unknown stack {stack}")]
    UnknownStack {
        /// The node id of that stack.
        stack: u32,
    },
    /// A module's path or build id is longer than any can be.
    #[error("module {id} has an impossible path or build id")]
    ModuleText {
        /// The module's id.
        id: u32,
    },
    /// There is more of something than is kept in memory.
    #[error("more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are kept.
        limit: u64,
    },
}

/// How the trace ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ending {
    /// The recording was ended in order.
    InOrder,
    /// The file ends early: the recorder was killed, its disk was full, or it is still recording.
    Cut,
    /// The bytes from some place on are not what was written. All figures are for what comes before.
    Damaged(Error),
    /// A record can't be true. All figures are for what comes before.
    Impossible(Violation),
}

impl Ending {
    /// Whether the trace itself is broken, as opposed to complete up to where it stops.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged(_) | Self::Impossible(_))
    }

    /// What there is to say about it in one sentence; `None` when all is in order.
    pub fn note(&self) -> Option<String> {
        match self {
            Self::InOrder => None,
            Self::Cut => Some(
                "the recording did not end in order: the trace stops early, and what it has until then is complete"
                    .into(),
            ),
            Self::Damaged(error) => Some(format!("{error}; the figures are for what comes before")),
            Self::Impossible(violation) => {
                Some(format!("the trace is damaged: {violation}; the figures are for what comes before"))
            }
        }
    }
}

/// What one pass over a trace gives.
#[derive(Debug)]
#[non_exhaustive]
pub struct Analysis {
    /// The process that was recorded.
    pub process: ProcessInfo,
    /// How it ended, where that is known.
    pub exit: Option<Exit>,
    /// How the trace ended.
    pub ending: Ending,
    /// The figures over everything.
    pub totals: Totals,
    /// Where only some allocations were recorded, by which rule; all figures are estimates then.
    pub sampling: Option<Sampling>,
    /// Blocks that each family of functions gave out, by allocations and by reallocations, at the source's number.
    pub functions: [u64; Source::ALL.len()],
    /// The sites, by their allocated bytes, most first; sites with equal bytes by their allocations, then in
    /// the order of their stacks.
    pub sites: Vec<Site>,
    /// Blocks that were given back in the wrong way, the most frequent first.
    pub mismatches: Vec<Mismatch>,
    /// The heaps besides the program's own, by their allocated bytes, most first. No other figure has them in it.
    pub heaps: Vec<HeapAnalysis>,
    /// What the program mapped by itself; no other figure has it in it.
    pub mappings: MappingAnalysis,
    /// What the last scan for leaks found, if the trace has one.
    pub leaks: Option<Found>,
    /// Every stack.
    pub stacks: Stacks,
    /// Every module.
    pub modules: Modules,
    /// Moments that were marked, in their order.
    pub marks: Vec<Moment>,
    /// What the recording cost, where the trace says so.
    pub meter: Option<Meter>,
    /// Threads that the trace names.
    pub threads: u32,
    /// Events read.
    pub events: u64,
}

impl Analysis {
    /// Whether the recording began in a process that ran already, and knows which blocks it had.
    pub fn knows_before(&self) -> bool {
        let has = |wanted: fn(&Mark) -> bool| self.marks.iter().any(|moment| wanted(&moment.mark));
        has(|mark| *mark == Mark::Attached) && !has(|mark| matches!(mark, Mark::BeforeUnknown(_)))
    }
}

/// Reads the rest of a trace and adds it up.
///
/// Never fails: a trace that breaks off is worth what it has until then, and [`Analysis::ending`] tells.
pub fn analyse<R: Read + Send>(reader: Reader<R>) -> Analysis {
    analyse_with(reader, Sites::new()).0
}

/// As [`analyse`]; meanwhile `symbols` opens the files of modules that stacks lie in, on this thread.
pub fn analyse_and_open<R: Read + Send>(reader: Reader<R>, symbols: &mut Symbols<'_>) -> Analysis {
    let (to, modules) = mpsc::channel();
    let mut ahead = Some(Ahead::new(reader, u64::MAX).telling(to));
    let all = &mut ahead;
    let analysis = thread::scope(move |scope| {
        let pass = || all.take().map(|ahead| add_up(ahead, Sites::new()).0);
        let pass = thread::Builder::new().name("pass".into()).spawn_scoped(scope, pass).ok()?;
        modules.iter().for_each(|module| symbols.prepare(&module));
        pass.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    // Where no thread can be had, one thing comes after the other.
    analysis.or_else(|| Some(add_up(ahead?, Sites::new()).0)).expect("it is taken where it is added up")
}

/// What a pass adds up: the sites, and perhaps more.
pub(crate) trait Tally: Watcher {
    /// The sites so far.
    fn sites(&self) -> &Sites;
    /// Forgets everything.
    fn begin_anew(&mut self);
    /// From here on it is so many nanoseconds since the recording began.
    fn moment(&mut self, ns: u64);
    /// A thread has this number from here on.
    fn thread(&mut self, _index: u32, _tid: u32, _name: &[u8]) {}
}

impl Tally for Sites {
    fn sites(&self) -> &Sites {
        self
    }

    fn begin_anew(&mut self) {
        *self = Self::new();
    }

    fn moment(&mut self, _ns: u64) {}
}

/// As [`analyse`]; gives also the first of equal nodes for each node, and all that was added up.
pub(crate) fn analyse_with<R: Read + Send, T: Tally>(reader: Reader<R>, tally: T) -> (Analysis, Vec<u32>, T) {
    add_up(Ahead::new(reader, u64::MAX), tally)
}

fn add_up<R: Read + Send, T: Tally>(ahead: Ahead<R>, tally: T) -> (Analysis, Vec<u32>, T) {
    let mut pass = Pass::new(tally);
    let mut violated = None;
    let Done { reader, stacks, events, ending } = ahead.each(|stretch| match pass.take_stretch(stretch) {
        Ok(()) => ControlFlow::Continue(()),
        Err(violation) => {
            violated = Some(violation);
            ControlFlow::Break(())
        }
    });
    let (ending, events) = match violated {
        Some((violation, events)) => (Ending::Impossible(violation), events),
        None => (ending.unwrap_or(Ending::Cut), events),
    };
    let (mut totals, sampling) = pass.totals();
    let end = reader.end();
    if let Some(end) = end {
        totals.lost_events = end.lost;
        totals.duration_ns = end.duration_ns;
    }
    let started = reader.info().started_unix_ns;
    pass.modules.recorded = recorded(started, end.map_or(reader.time(), |end| end.duration_ns));
    // Each of these may be large, and none is needed beside the next.
    drop((pass.live, pass.sample));
    let sites = pass.tally.sites();
    totals.temporary_allocations = sites.temporary_allocations();
    let functions = sites.functions();
    let canonical = canonical_nodes(&stacks, &pass.modules);
    let sites = sites.merged(&canonical);
    let leaks = reader.leaks().and_then(|scan| Found::new(scan.clone(), &stacks, &canonical));
    let analysis = Analysis {
        process: reader.info().clone(),
        exit: end.and_then(|end| end.exit),
        ending,
        totals,
        sampling,
        functions,
        sites,
        mismatches: pass.mismatches.finish(&canonical),
        heaps: pass.heaps.finish(&canonical),
        mappings: pass.mappings.finish(&canonical),
        leaks,
        stacks,
        modules: pass.modules,
        marks: pass.marks,
        meter: reader.meter(),
        threads: pass.threads,
        events,
    };
    (analysis, canonical, pass.tally)
}

/// When a recording began and ended. What was imported doesn't know when it was.
pub(crate) fn recorded(started_unix_ns: u64, duration_ns: u64) -> Option<(SystemTime, SystemTime)> {
    let at = |ns| SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(ns));
    let until = at(started_unix_ns.saturating_add(duration_ns))?;
    Some((at(started_unix_ns).filter(|_| started_unix_ns != 0)?, until))
}

/// What is known after a part of a trace.
pub(crate) struct Pass<T> {
    live: LiveBlocks,
    /// In place of `live`, from the first event that says so.
    sample: Option<Box<LiveSample>>,
    pub(crate) tally: T,
    mismatches: Mismatches,
    mappings: Mappings,
    heaps: Heaps,
    pub(crate) modules: Modules,
    pub(crate) marks: Vec<Moment>,
    time_ns: u64,
    pub(crate) threads: u32,
}

impl<T: Tally> Pass<T> {
    pub(crate) fn new(tally: T) -> Self {
        Self {
            live: LiveBlocks::new(),
            sample: None,
            tally,
            mismatches: Mismatches::default(),
            mappings: Mappings::default(),
            heaps: Heaps::default(),
            modules: Modules::default(),
            marks: Vec::new(),
            time_ns: 0,
            threads: 0,
        }
    }

    /// The figures so far, but for those that only the trace's end or the tally knows; those of a sample are estimates, by
    /// which rule comes with them.
    pub(crate) fn totals(&self) -> (Totals, Option<Sampling>) {
        match &self.sample {
            Some(sample) => (sample.totals(), sample.sampling()),
            None => (self.live.totals(), None),
        }
    }

    /// Takes in events up to the first that can't be true; with it comes how many events of the trace there are until then.
    pub(crate) fn take_stretch(&mut self, stretch: &mut Stretch) -> Result<(), (Violation, u64)> {
        let mut from = 0;
        for other in stretch.others.drain(..) {
            let with_count = |violation| (violation, other.until);
            self.take_heap(&stretch.heap[from..other.at]).map_err(with_count)?;
            from = other.at;
            self.take(other.event).map_err(with_count)?;
        }
        self.take_heap(&stretch.heap[from..]).map_err(|violation| (violation, stretch.until))
    }

    /// Takes in events of the heap.
    fn take_heap(&mut self, events: &[HeapEvent]) -> Result<(), Violation> {
        let events = match (events, self.heaps.take_mark()) {
            ([first, rest @ ..], Some(id)) => {
                self.heaps.apply(id, first)?;
                rest
            }
            (_, Some(id)) => {
                self.heaps.mark(id);
                return Ok(());
            }
            (_, None) => events,
        };
        let live =
            self.sample.as_ref().map_or(self.live.live_allocations(), |sample| sample.live_allocations());
        if live + events.len() as u64 > MAX_LIVE {
            return Err(Violation::TooMany { what: "live blocks", limit: MAX_LIVE });
        }
        if let Some(sample) = &mut self.sample {
            sample.apply_all_watched(events, &mut self.tally);
        } else if self.mismatches.is_quiet() {
            self.live.apply_all_watched(events, &mut self.tally);
        } else {
            for event in events {
                self.mismatches.look(event, &self.live);
                self.live.apply_all_watched(core::slice::from_ref(event), &mut self.tally);
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Module(module) => self.modules.push(module)?,
            Event::Names(names) => self.modules.name(&names)?,
            Event::FreedAs(said) => self.mismatches.announce(said),
            Event::Mapping(event) => self.mappings.apply(&event)?,
            Event::Heap(heap) => self.heaps.define(&heap)?,
            Event::Mark(mark) => marks::keep(&mut self.marks, self.time_ns, mark),
            Event::HeapEnd(id) => self.heaps.end(id),
            Event::InHeap(id) => self.heaps.mark(id),
            Event::Thread { index, tid, ref name } => {
                self.threads = self.threads.saturating_add(1);
                self.tally.thread(index, tid, name);
            }
            _ => {
                if let Event::Time(ns) = event {
                    self.time_ns = ns;
                    self.mappings.set_time(ns);
                    self.modules.set_time(ns);
                    self.heaps.set_time(ns);
                    self.tally.moment(ns);
                }
                if let Event::Sampled { thread, mean } = event {
                    self.heaps.set_mean(thread, mean);
                }
                if matches!(event, Event::Sampled { .. }) && self.sample.is_none() {
                    self.sample = Some(Box::new(LiveSample::continued(&self.live)));
                    // What was recorded before is of another kind: nothing, but in a trace that was made up.
                    self.tally.begin_anew();
                }
                match &mut self.sample {
                    Some(sample) => sample.apply_watched(&event, &mut self.tally),
                    None => self.live.apply_watched(&event, &mut self.tally),
                }
            }
        }
        Ok(())
    }
}
