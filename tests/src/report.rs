//! The JSON that `grapnel report --format json` prints. Unknown fields are errors: the schema is a promise.

use crate::truth::Totals;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A whole report.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Version of the schema: 1.
    pub version: u32,
    /// What was recorded.
    pub process: Process,
    /// The figures of the whole process.
    pub totals: ReportTotals,
    /// How the figures were estimated, where only some allocations were recorded.
    pub sampling: Option<Sampling>,
    /// What the recording cost; absent when the recorder never came to say so.
    pub recorder: Option<Recorder>,
    /// One entry per stack.
    pub sites: Vec<Site>,
    /// One entry per pair of stacks of which one gave back in the wrong way what the other got.
    pub mismatches: Vec<Mismatch>,
    /// Heaps besides the program's own, by name.
    pub heaps: Vec<Heap>,
    /// What the program mapped by itself.
    pub mappings: Mappings,
    /// Moments that were marked, in their order.
    pub marks: Vec<Mark>,
}

/// A moment that was marked.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// When, in nanoseconds since the recording began.
    pub time_ns: u64,
    /// What it is.
    pub kind: String,
    /// What it is called, of a `mark`.
    pub name: Option<String>,
}

/// The process that was recorded.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Process id.
    pub pid: u64,
    /// Its arguments, the program's name first.
    pub command: Vec<String>,
    /// How it ended; absent when that isn't known.
    pub exit: Option<Exit>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Exit {
    /// With this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// The figures of a process.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct ReportTotals {
    pub allocations: u64,
    pub frees: u64,
    pub reallocations: u64,
    pub allocated_bytes: u64,
    pub peak_bytes: u64,
    pub live_allocations: u64,
    pub live_bytes: u64,
    pub lost_events: u64,
    pub duration_ns: u64,
    pub functions: BTreeMap<String, u64>,
    pub before: Option<Before>,
}

/// Blocks that were there before it was attached.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct Before {
    pub allocations: u64,
    pub bytes: u64,
}

/// What is said of a sample.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct Sampling {
    pub mean_bytes: u64,
    pub recorded: u64,
    pub errors: Errors,
}

/// What the recording cost.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct Recorder {
    pub events: u64,
    pub timed_events: u64,
    pub added_ns: Option<u64>,
    pub added_ns_error: Option<u64>,
    pub program_cpu_ns: Option<u64>,
    pub slowdown_percent: Option<u64>,
    pub setup_ns: u64,
    pub waited_ns: u64,
    pub drain_cpu_ns: u64,
    pub agent_bytes: u64,
    pub shared_bytes: u64,
    pub command_bytes: u64,
}

/// Standard errors.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct Errors {
    pub allocations: u64,
    pub allocated_bytes: u64,
    pub live_allocations: u64,
    pub live_bytes: u64,
    pub peak_bytes: u64,
}

/// Blocks that were given back in the wrong way.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct Mismatch {
    pub fault: String,
    pub count: u64,
    pub bytes: u64,
    pub allocated_by: String,
    pub allocated_alignment: Option<u64>,
    pub allocated_size: u64,
    pub freed_by: String,
    pub freed_alignment: Option<u64>,
    pub freed_size: Option<u64>,
    pub allocated_frames: Vec<Frame>,
    pub freed_frames: Vec<Frame>,
}

/// Heaps besides the program's own, of one name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct Heap {
    pub name: String,
    pub kind: String,
    pub heaps: u64,
    pub live_heaps: u64,
    pub totals: HeapTotals,
    pub sampling: Option<Sampling>,
    pub sites: Vec<Site>,
}

/// Figures of such heaps.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct HeapTotals {
    pub allocations: u64,
    pub frees: u64,
    pub reallocations: u64,
    pub allocated_bytes: u64,
    pub peak_bytes: u64,
    pub live_allocations: u64,
    pub live_bytes: u64,
    pub functions: BTreeMap<String, u64>,
}

/// What a program mapped by itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct Mappings {
    pub totals: MappingFigures,
    pub kinds: BTreeMap<String, MappingFigures>,
    pub sites: Vec<MappingSite>,
}

/// Figures of mappings.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct MappingFigures {
    pub mappings: u64,
    pub mapped_bytes: u64,
    pub live_mappings: u64,
    pub live_bytes: u64,
    pub peak_bytes: u64,
}

/// The mappings of one stack.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct MappingSite {
    pub mappings: u64,
    pub mapped_bytes: u64,
    pub live_mappings: u64,
    pub live_bytes: u64,
    pub peak_bytes: u64,
    pub kinds: Vec<String>,
    pub frames: Vec<Frame>,
}

/// The figures of one stack.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct Site {
    pub allocations: u64,
    pub allocated_bytes: u64,
    pub live_allocations: u64,
    pub live_bytes: u64,
    pub peak_bytes: u64,
    pub temporary_allocations: u64,
    pub functions: Vec<String>,
    pub errors: Option<Errors>,
    pub frames: Vec<Frame>,
}

/// One frame, inlined ones included.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the schema's own names, documented with the report")]
pub struct Frame {
    pub function: Option<String>,
    pub module: Option<String>,
    pub offset: Option<String>,
    pub file: Option<String>,
    pub line: Option<u64>,
    pub inlined: bool,
    pub guess: bool,
    #[serde(default)]
    pub mark: Option<String>,
}

impl Report {
    /// The figures that the counting library has too.
    pub fn totals(&self) -> Totals {
        Totals {
            allocations: self.totals.allocations,
            frees: self.totals.frees,
            reallocations: self.totals.reallocations,
            allocated_bytes: self.totals.allocated_bytes,
            peak_bytes: self.totals.peak_bytes,
            live_allocations: self.totals.live_allocations,
            live_bytes: self.totals.live_bytes,
        }
    }

    /// Checks what must hold in every report: nothing was lost, and the sites add up to the totals.
    ///
    /// # Panics
    /// If it doesn't hold.
    pub fn check(&self) {
        assert_eq!(self.version, 1);
        let totals = &self.totals;
        assert_eq!(totals.lost_events, 0, "events were lost: {totals:?}");
        // Of a sample each figure is rounded by itself.
        let room = if self.sampling.is_some() { self.sites.len() as u64 + 10 } else { 0 };
        let same = |parts: u64, whole: u64, what: &str| {
            assert!(parts.abs_diff(whole) <= room, "{what}: {parts} is not {whole}");
        };
        let sum = |figure: fn(&Site) -> u64| self.sites.iter().map(figure).sum::<u64>();
        let given = totals.allocations + totals.reallocations;
        same(sum(|site| site.allocations), given, "sites' allocations");
        same(totals.functions.values().sum(), given, "functions' allocations");
        same(sum(|site| site.allocated_bytes), totals.allocated_bytes, "sites' bytes");
        same(sum(|site| site.live_allocations), totals.live_allocations, "sites' live blocks");
        same(sum(|site| site.live_bytes), totals.live_bytes, "sites' live bytes");
        same(sum(|site| site.peak_bytes), totals.peak_bytes, "sites' bytes at the peak");
        assert!(self.sites.iter().all(|site| site.errors.is_some() == self.sampling.is_some()));
        self.mappings.check();
        self.heaps.iter().for_each(Heap::check);
    }
}

impl Heap {
    fn check(&self) {
        let sum = |figure: fn(&Site) -> u64| self.sites.iter().map(figure).sum::<u64>();
        let totals = &self.totals;
        let given = totals.allocations + totals.reallocations;
        let sites = [
            sum(|site| site.allocations),
            sum(|site| site.allocated_bytes),
            sum(|site| site.live_allocations),
            sum(|site| site.live_bytes),
            sum(|site| site.peak_bytes),
        ];
        let HeapTotals { allocated_bytes, live_allocations, live_bytes, peak_bytes, .. } = *totals;
        let right = [given, allocated_bytes, live_allocations, live_bytes, peak_bytes];
        // Of a sample each figure is rounded by itself.
        let room = if self.sampling.is_some() { self.sites.len() as u64 + 10 } else { 0 };
        let is_near = |(part, whole): (u64, u64)| part.abs_diff(whole) <= room;
        assert!(sites.into_iter().zip(right).all(is_near), "{}: {sites:?} are not {right:?}", self.name);
        assert!(is_near((totals.functions.values().sum(), given)), "{}", self.name);
        assert!(self.sites.iter().all(|site| site.errors.is_some() == self.sampling.is_some()));
    }
}

impl Mappings {
    fn check(&self) {
        let of_sites = |figure: fn(&MappingSite) -> u64| self.sites.iter().map(figure).sum::<u64>();
        let of_kinds = |figure: fn(&MappingFigures) -> u64| self.kinds.values().map(figure).sum::<u64>();
        let MappingFigures { mappings, mapped_bytes, live_mappings, live_bytes, peak_bytes } = self.totals;
        let totals = [mappings, mapped_bytes, live_mappings, live_bytes];
        let sites = [
            of_sites(|site| site.mappings),
            of_sites(|site| site.mapped_bytes),
            of_sites(|site| site.live_mappings),
            of_sites(|site| site.live_bytes),
        ];
        assert_eq!(sites, totals, "sites' mappings");
        let kinds = [
            of_kinds(|kind| kind.mappings),
            of_kinds(|kind| kind.mapped_bytes),
            of_kinds(|kind| kind.live_mappings),
            of_kinds(|kind| kind.live_bytes),
        ];
        assert_eq!(kinds, totals, "mappings by kind");
        assert_eq!(of_sites(|site| site.peak_bytes), peak_bytes, "sites' mapped bytes at the peak");
        assert!(self.kinds.values().all(|kind| kind.peak_bytes <= peak_bytes));
    }
}

impl Frame {
    /// The function's name, or nothing.
    pub fn name(&self) -> &str {
        self.function.as_deref().unwrap_or_default()
    }

    /// Whether the frame lies at this line of the file of this name.
    pub fn is_at(&self, file_name: &str, line: u64) -> bool {
        self.is_in(file_name) && self.line == Some(line)
    }

    /// Whether the frame lies in the file of this name.
    pub fn is_in(&self, file_name: &str) -> bool {
        self.file.as_deref().is_some_and(|file| file.rsplit('/').next() == Some(file_name))
    }
}

impl Site {
    /// The stack as text, leaf first, for messages of failed tests.
    pub fn stack(&self) -> String {
        let frame = |frame: &Frame| {
            let file = frame.file.as_deref().unwrap_or("?");
            let module = frame.module.as_deref().unwrap_or("?");
            format!("  {} ({file}:{:?}) {module}", frame.name(), frame.line)
        };
        self.frames.iter().map(frame).collect::<Vec<_>>().join("\n")
    }
}
