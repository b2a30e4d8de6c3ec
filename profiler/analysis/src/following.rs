//! A trace that still grows: the same pass as [`crate::analyse()`]'s, step by step, whose figures can be asked for in between.
//!
//! Memory is bounded as there. The trace comes through [`grapnel_trace::growing::Growing`], so that it may be read again
//! from where it ended.

use crate::ahead::{Ahead, Stretch};
use crate::analyse::{Analysis, Ending, Pass, recorded};
use crate::live::Totals;
use crate::mappings::MappingAnalysis;
use crate::marks::Moment;
use crate::merge;
use crate::modules::Modules;
use crate::sites::{Site, Sites};
use crate::stacks::Stacks;
use crate::weight::Sampling;
use grapnel_trace::event::ProcessInfo;
use grapnel_trace::growing::Growing;
use grapnel_trace::reader::{End, Reader};
use std::io::Read;
use std::sync::Arc;

/// What reading on came to.
#[derive(Debug)]
pub enum Step {
    /// There was something, and may be more.
    Read,
    /// There is no more now.
    CaughtUp,
    /// There is no more, and never will be.
    Over(Ending),
}

/// A trace that is followed while it grows.
pub struct Following<R: Read + Send> {
    ahead: Ahead<Growing<R>>,
    pass: Pass<Sites>,
    stretch: Stretch,
    over: bool,
    modules: Arc<Modules>,
}

impl<R: Read + Send> core::fmt::Debug for Following<R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Following({:?})", self.ahead.reader())
    }
}

impl<R: Read + Send> Following<R> {
    /// Follows a trace of which nothing but the beginning was read.
    pub fn new(reader: Reader<Growing<R>>) -> Self {
        let (ahead, pass) = (Ahead::new(reader, u64::MAX), Pass::new(Sites::new()));
        Self { ahead, pass, stretch: Stretch::default(), over: false, modules: Arc::default() }
    }

    /// Reads on by some thousand events; up to the next mark, if one comes before.
    pub fn step(&mut self) -> Step {
        if self.over {
            return Step::CaughtUp;
        }
        let ending = self.ahead.next(&mut self.stretch);
        let taken = self.pass.take_stretch(&mut self.stretch);
        let ending = match (taken, ending) {
            (Err((violation, _)), _) => Ending::Impossible(violation),
            (Ok(()), Some(ending)) => ending,
            (Ok(()), None) => return Step::Read,
        };
        if matches!(ending, Ending::Cut) {
            return Step::CaughtUp;
        }
        self.over = true;
        Step::Over(ending)
    }

    /// The process that is recorded.
    pub fn process(&self) -> &ProcessInfo {
        self.ahead.reader().info()
    }

    /// How the process ended, once the recording was ended in order.
    pub fn end(&self) -> Option<End> {
        self.ahead.reader().end()
    }

    /// The time of the last event, in nanoseconds since the recording began.
    pub fn time_ns(&self) -> u64 {
        self.ahead.reader().time()
    }

    /// Bytes of the trace that were taken in.
    pub fn offset(&self) -> u64 {
        self.ahead.reader().offset()
    }

    /// The figures so far; where they are estimates, with what is to be said of the sample.
    pub fn totals(&self) -> (Totals, Option<Sampling>) {
        let (mut totals, sampling) = self.pass.totals();
        if let Some(end) = self.end() {
            totals.lost_events = end.lost;
            totals.duration_ns = end.duration_ns;
        }
        totals.temporary_allocations = self.pass.tally.temporary_allocations();
        (totals, sampling)
    }

    /// The figures of each site, in the order of their first allocations: one that has come stays in its place. Several may
    /// have equal stacks, see [`Following::first_equal`].
    pub fn sites(&self) -> Vec<Site> {
        self.pass.tally.finish()
    }

    /// For each node, from 0 for the empty stack, the first one that has an equal stack by files and offsets; nothing where
    /// each is the only one. It takes as long as there are nodes.
    pub fn first_equal(&self) -> Option<Vec<u32>> {
        let canonical = merge::canonical_nodes(self.stacks(), &self.pass.modules);
        (!merge::is_each_its_own(&canonical)).then_some(canonical)
    }

    /// Every stack so far.
    pub fn stacks(&self) -> &Stacks {
        self.ahead.stacks()
    }

    /// Every module so far. The same as last time unless there are new ones.
    pub fn modules(&mut self) -> Arc<Modules> {
        if self.modules.version() != self.pass.modules.version() {
            self.modules = Arc::new(self.pass.modules.clone());
        }
        Arc::clone(&self.modules)
    }

    /// What [`crate::analyse()`] gives of a trace that ends here, without heaps, mappings, leaks and mismatches. It takes as
    /// long as there are stacks.
    pub fn analysis(&mut self) -> Analysis {
        let (totals, sampling) = self.totals();
        let canonical = merge::canonical_nodes(self.stacks(), &self.pass.modules);
        let sites = self.pass.tally.merged(&canonical);
        let mut modules = self.pass.modules.clone();
        let started = self.process().started_unix_ns;
        modules.recorded = recorded(started, totals.duration_ns);
        Analysis {
            process: self.process().clone(),
            exit: self.end().and_then(|end| end.exit),
            ending: if self.end().is_some() { Ending::InOrder } else { Ending::Cut },
            totals,
            sampling,
            functions: self.pass.tally.functions(),
            sites,
            mismatches: Vec::new(),
            heaps: Vec::new(),
            mappings: MappingAnalysis::default(),
            leaks: None,
            stacks: self.stacks().clone(),
            modules,
            marks: self.pass.marks.clone(),
            meter: self.ahead.reader().meter(),
            threads: self.pass.threads,
            events: self.ahead.events(),
        }
    }

    /// Moments that were marked so far.
    pub fn marks(&self) -> &[Moment] {
        &self.pass.marks
    }

    /// Threads that the trace has named so far.
    pub fn threads(&self) -> u32 {
        self.pass.threads
    }
}
