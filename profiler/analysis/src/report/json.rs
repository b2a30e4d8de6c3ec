//! The report as JSON, version 1.
//!
//! ```json
//! {"version":1,
//!  "process":{"pid":4242,"command":["./app","-v"],"exit":{"code":0}},
//!  "totals":{"allocations":2,"frees":1,"reallocations":0,"allocated_bytes":300,"peak_bytes":300,
//!            "live_allocations":1,"live_bytes":100,"lost_events":0,"duration_ns":1500000},
//!  "sites":[{"allocations":1,"allocated_bytes":200,"live_allocations":0,"live_bytes":0,"peak_bytes":200,
//!            "temporary_allocations":0,
//!            "frames":[{"function":"load","module":"/usr/bin/app","offset":"0x11a9","file":"/src/app.c",
//!                       "line":12,"inlined":false}]}]}
//! ```
//!
//! What each figure means is defined in [`crate::live`] and [`crate::sites`]. `docs/report-json.md` in the
//! repository describes every field.

use super::heaps::HeapList;
use super::mappings::MappingsForm;
use super::mismatches::{fault_name, is_seen_whole, release_name};
use super::words::source_name;
use crate::Analysis;
use crate::marks::Moment;
use crate::overhead::Overhead;
use crate::sites::Site;
use crate::stacks::Lack;
use crate::symbols::Symbols;
use crate::weight::{Errors, Sampling};
use grapnel_trace::event::Exit;
use grapnel_trace::{Mark, Meter, Source};
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, Write};

/// The version of the form. It rises when a field changes its meaning or goes; fields may come at any time.
pub const VERSION: u32 = 1;

/// Writes the report with the first `top` sites, all for 0. They come in the analysis's order, each as soon
/// as its frames are looked up.
///
/// # Errors
/// What writing gives.
pub fn write(
    mut out: impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    top: usize,
) -> io::Result<()> {
    let totals = &analysis.totals;
    let symbols = &RefCell::new(symbols);
    let report = Report {
        version: VERSION,
        process: Process {
            pid: analysis.process.pid,
            command: analysis.process.command.iter().map(|arg| String::from_utf8_lossy(arg)).collect(),
            exit: analysis.exit.map(|exit| match exit {
                Exit::Code(code) => ExitForm::Code(code),
                Exit::Signal(signal) => ExitForm::Signal(signal),
            }),
        },
        totals: Totals {
            allocations: totals.allocations,
            frees: totals.frees,
            reallocations: totals.reallocations,
            allocated_bytes: totals.allocated_bytes,
            peak_bytes: totals.peak_bytes,
            live_allocations: totals.live_allocations,
            live_bytes: totals.live_bytes,
            lost_events: totals.lost_events,
            duration_ns: totals.duration_ns,
            functions: Functions(analysis.functions),
            before: analysis
                .knows_before()
                .then_some(Before { allocations: totals.before_allocations, bytes: totals.before_bytes }),
        },
        sampling: analysis.sampling.as_ref().map(SamplingForm::of),
        recorder: analysis.meter.as_ref().map(RecorderForm::of),
        sites: SiteList {
            sites: &analysis.sites,
            analysis,
            symbols,
            top,
            errors: analysis.sampling.is_some(),
        },
        mismatches: MismatchList { analysis, symbols },
        heaps: HeapList { analysis, symbols, top },
        mappings: MappingsForm { analysis, symbols, top },
        marks: analysis.marks.iter().map(MarkForm::of).collect(),
    };
    serde_json::to_writer(&mut out, &report)?;
    out.write_all(b"\n")?;
    out.flush()
}

#[derive(Serialize)]
struct Report<'r, 's, 'a> {
    version: u32,
    process: Process<'r>,
    totals: Totals,
    sampling: Option<SamplingForm>,
    recorder: Option<RecorderForm>,
    sites: SiteList<'r, 's, 'a>,
    mismatches: MismatchList<'r, 's, 'a>,
    heaps: HeapList<'r, 's, 'a>,
    mappings: MappingsForm<'r, 's, 'a>,
    marks: Vec<MarkForm<'r>>,
}

#[derive(Serialize)]
struct MarkForm<'r> {
    time_ns: u64,
    kind: &'static str,
    name: Option<Cow<'r, str>>,
}

impl<'r> MarkForm<'r> {
    fn of(moment: &'r Moment) -> Self {
        let kind = match moment.mark {
            Mark::Named(_) => "mark",
            Mark::Paused => "paused",
            Mark::Resumed => "resumed",
            Mark::Snapshot => "snapshot",
            Mark::Attached => "attached",
            Mark::Detached => "detached",
            Mark::BeforeUnknown(_) => "before_unknown",
            _ => "unknown",
        };
        let name = match &moment.mark {
            Mark::Named(_) => Some(moment.name()),
            Mark::BeforeUnknown(why) => Some(String::from_utf8_lossy(why)),
            _ => None,
        };
        Self { time_ns: moment.time_ns, kind, name }
    }
}

#[derive(Serialize)]
struct Process<'r> {
    pid: u32,
    command: Vec<Cow<'r, str>>,
    exit: Option<ExitForm>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum ExitForm {
    Code(i32),
    Signal(i32),
}

#[derive(Serialize)]
struct Totals {
    allocations: u64,
    frees: u64,
    reallocations: u64,
    allocated_bytes: u64,
    peak_bytes: u64,
    live_allocations: u64,
    live_bytes: u64,
    lost_events: u64,
    duration_ns: u64,
    functions: Functions,
    before: Option<Before>,
}

#[derive(Serialize)]
struct Before {
    allocations: u64,
    bytes: u64,
}

#[derive(Serialize)]
pub(super) struct SamplingForm {
    mean_bytes: u64,
    recorded: u64,
    errors: ErrorsForm,
}

impl SamplingForm {
    pub(super) fn of(sampling: &Sampling) -> Self {
        let Sampling { mean, recorded, errors } = sampling;
        Self { mean_bytes: *mean, recorded: *recorded, errors: ErrorsForm::of(errors) }
    }
}

/// Standard errors, rounded up.
#[derive(Serialize)]
struct ErrorsForm {
    allocations: u64,
    allocated_bytes: u64,
    live_allocations: u64,
    live_bytes: u64,
    peak_bytes: u64,
}

impl ErrorsForm {
    fn of(errors: &Errors) -> Self {
        let Errors { allocations, allocated_bytes, live_allocations, live_bytes, peak_bytes } = *errors;
        let [allocations, allocated_bytes, live_allocations, live_bytes, peak_bytes] =
            [allocations, allocated_bytes, live_allocations, live_bytes, peak_bytes]
                .map(|error| error.ceil() as u64);
        Self { allocations, allocated_bytes, live_allocations, live_bytes, peak_bytes }
    }
}

/// What the recording cost. Estimates are rounded, their errors rounded up.
#[derive(Serialize)]
struct RecorderForm {
    events: u64,
    timed_events: u64,
    added_ns: Option<u64>,
    added_ns_error: Option<u64>,
    program_cpu_ns: Option<u64>,
    slowdown_percent: Option<u64>,
    setup_ns: u64,
    waited_ns: u64,
    drain_cpu_ns: u64,
    agent_bytes: u64,
    shared_bytes: u64,
    command_bytes: u64,
}

impl RecorderForm {
    fn of(meter: &Meter) -> Self {
        let overhead = Overhead::of(meter);
        Self {
            events: overhead.events,
            timed_events: overhead.timed,
            added_ns: overhead.added.map(|added| added.value.round() as u64),
            added_ns_error: overhead.added.map(|added| added.error.ceil() as u64),
            program_cpu_ns: overhead.program_cpu_ns,
            slowdown_percent: overhead.slowdown_percent().map(|slowdown| slowdown.value.round() as u64),
            setup_ns: meter.setup_ns,
            waited_ns: meter.waited_ns,
            drain_cpu_ns: meter.drain_cpu_ns,
            agent_bytes: meter.agent_bytes,
            shared_bytes: meter.shared_bytes,
            command_bytes: meter.command_bytes,
        }
    }
}

/// Blocks that each family of functions gave out.
pub(super) struct Functions(pub(super) [u64; Source::ALL.len()]);

impl Serialize for Functions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer
            .collect_map(Source::ALL.into_iter().map(|source| (source_name(source), self.0[source as usize])))
    }
}

/// Looks frames up while it is written, so that a report with many long stacks is never in memory as a
/// whole. The cell is for that: to serialize takes `&self`, to look up takes `&mut Symbols`.
pub(super) struct SiteList<'r, 's, 'a> {
    pub(super) sites: &'r [Site],
    pub(super) analysis: &'r Analysis,
    pub(super) symbols: &'r RefCell<&'s mut Symbols<'a>>,
    pub(super) top: usize,
    /// Whether the figures are estimates.
    pub(super) errors: bool,
}

impl Serialize for SiteList<'_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = if self.top == 0 { usize::MAX } else { self.top };
        serializer.collect_seq(self.sites.iter().take(shown).map(|site| SiteForm {
            allocations: site.allocations,
            allocated_bytes: site.allocated_bytes,
            live_allocations: site.live_allocations,
            live_bytes: site.live_bytes,
            peak_bytes: site.peak_bytes,
            temporary_allocations: site.temporary_allocations,
            functions: site.sources.iter().map(source_name).collect(),
            errors: self.errors.then(|| ErrorsForm::of(&site.errors)),
            frames: FrameList { analysis: self.analysis, symbols: self.symbols, stack: site.stack },
        }))
    }
}

#[derive(Serialize)]
struct SiteForm<'r, 's, 'a> {
    allocations: u64,
    allocated_bytes: u64,
    live_allocations: u64,
    live_bytes: u64,
    peak_bytes: u64,
    temporary_allocations: u64,
    functions: Vec<&'static str>,
    errors: Option<ErrorsForm>,
    frames: FrameList<'r, 's, 'a>,
}

pub(crate) struct FrameList<'r, 's, 'a> {
    pub(crate) analysis: &'r Analysis,
    pub(crate) symbols: &'r RefCell<&'s mut Symbols<'a>>,
    pub(crate) stack: u32,
}

impl Serialize for FrameList<'_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let analysis = self.analysis;
        let mut symbols = self.symbols.borrow_mut();
        let mut frames = serializer.serialize_seq(None)?;
        let mut is_guess = false;
        for node in analysis.stacks.frames(self.stack) {
            let module = analysis.modules.get(node.module);
            let path = module.map(|module| String::from_utf8_lossy(&module.path));
            let offset = node.pc.wrapping_sub(module.map_or(0, |module| module.bias));
            for frame in symbols.frames(&analysis.modules, &node) {
                frames.serialize_element(&FrameForm {
                    function: frame.function(),
                    module: path.as_deref(),
                    offset: Hex(offset),
                    file: frame.file(),
                    line: frame.line(),
                    inlined: frame.inlined(),
                    guess: is_guess && !node.is_truncation(),
                    mark: node.lack().map(Lack::key),
                })?;
            }
            is_guess = node.caller_is_guess();
        }
        frames.end()
    }
}

/// Looks frames up while it is written, as [`SiteList`].
struct MismatchList<'r, 's, 'a> {
    analysis: &'r Analysis,
    symbols: &'r RefCell<&'s mut Symbols<'a>>,
}

impl Serialize for MismatchList<'_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { analysis, symbols } = *self;
        let frames = |stack| FrameList { analysis, symbols, stack };
        let found = analysis.mismatches.iter();
        let found = found.filter(|found| is_seen_whole(found, analysis, &mut symbols.borrow_mut()));
        serializer.collect_seq(found.map(|found| MismatchForm {
            fault: fault_name(found.fault),
            count: found.count,
            bytes: found.bytes,
            allocated_by: source_name(found.source),
            allocated_alignment: found.alignment.bytes(),
            allocated_size: found.size,
            freed_by: release_name(found.freed.release),
            freed_alignment: found.freed.alignment.bytes(),
            freed_size: found.freed.size,
            allocated_frames: frames(found.got_by),
            freed_frames: frames(found.freed.stack),
        }))
    }
}

#[derive(Serialize)]
struct MismatchForm<'r, 's, 'a> {
    fault: &'static str,
    count: u64,
    bytes: u64,
    allocated_by: &'static str,
    allocated_alignment: Option<u64>,
    allocated_size: u64,
    freed_by: &'static str,
    freed_alignment: Option<u64>,
    freed_size: Option<u64>,
    allocated_frames: FrameList<'r, 's, 'a>,
    freed_frames: FrameList<'r, 's, 'a>,
}

#[derive(Serialize)]
struct FrameForm<'f> {
    function: Option<&'f str>,
    module: Option<&'f str>,
    offset: Hex,
    file: Option<&'f str>,
    line: Option<u32>,
    inlined: bool,
    guess: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    mark: Option<&'static str>,
}

pub(crate) struct Hex(pub(crate) u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}
