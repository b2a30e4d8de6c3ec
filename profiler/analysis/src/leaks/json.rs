//! What a scan found, as JSON, version 1. `docs/leaks.md` in the repository describes every field.

use super::found::{Count, Found, Kind, LeakSite};
use super::words::{doubts, interior_name, kind_name, root, root_name};
use crate::Analysis;
use crate::report::json::{FrameList, Hex};
use crate::symbols::Symbols;
use grapnel_trace::leaks::Root;
use serde::Serialize;
use serde::ser::Serializer;
use std::cell::{Cell, RefCell};
use std::io::{self, Write};

/// The version of the form. It rises when a field changes its meaning or goes; fields may come at any time.
pub const VERSION: u32 = 1;

/// The most paths of a site, and the most steps of a path, that are written. What other programs read is for those that work
/// on a trace as a whole, so these are far beyond what is looked at; but a trace may be somebody else's.
const MAX_WAYS: usize = 1000;
const MAX_STEPS: usize = 256;
/// The most steps of all paths together: a forest of n nodes has paths of n * n steps.
const ALL_STEPS: usize = 1 << 20;

/// Writes all sites of these kinds, or the first `top` of each kind, with their paths.
///
/// # Errors
/// What writing gives.
pub fn write(
    mut out: impl Write,
    analysis: &Analysis,
    found: &Found,
    symbols: &mut Symbols<'_>,
    kinds: &[Kind],
    top: usize,
) -> io::Result<()> {
    let scan = &found.scan;
    let [direct, indirect, possible, reachable] = found.totals;
    let symbols = &RefCell::new(symbols);
    let left = &Cell::new(ALL_STEPS);
    let most = if top == 0 { usize::MAX } else { top };
    let form = Form {
        version: VERSION,
        pid: analysis.process.pid,
        scan: ScanForm {
            time_ns: scan.time_ns,
            at_exit: scan.at_exit,
            interior: interior_name(scan.interior),
            tags: Hex(scan.tags),
            root_bytes: scan.root_bytes,
            stopped_ns: scan.stopped_ns,
            notes: doubts(scan),
        },
        totals: TotalsForm { direct, indirect, possible, reachable },
        sites: kinds
            .iter()
            .flat_map(|&kind| found.of(kind).take(most))
            .map(|site| SiteForm {
                kind: kind_name(site.kind),
                own: site.own,
                holds: site.holds,
                frames: FrameList { analysis, symbols, stack: site.stack },
                paths: PathList { analysis, symbols, found, site, left },
            })
            .collect(),
    };
    serde_json::to_writer(&mut out, &form)?;
    out.write_all(b"\n")?;
    out.flush()
}

#[derive(Serialize)]
struct Form<'r, 's, 'a> {
    version: u32,
    pid: u32,
    scan: ScanForm,
    totals: TotalsForm,
    sites: Vec<SiteForm<'r, 's, 'a>>,
}

#[derive(Serialize)]
struct ScanForm {
    time_ns: u64,
    at_exit: bool,
    interior: &'static str,
    tags: Hex,
    root_bytes: u64,
    stopped_ns: u64,
    notes: Vec<&'static str>,
}

#[derive(Serialize)]
struct TotalsForm {
    direct: Count,
    indirect: Count,
    possible: Count,
    reachable: Count,
}

#[derive(Serialize)]
struct SiteForm<'r, 's, 'a> {
    kind: &'static str,
    #[serde(flatten)]
    own: Count,
    holds: Count,
    frames: FrameList<'r, 's, 'a>,
    paths: PathList<'r, 's, 'a>,
}

/// Looks frames up while it is written.
struct PathList<'r, 's, 'a> {
    analysis: &'r Analysis,
    symbols: &'r RefCell<&'s mut Symbols<'a>>,
    found: &'r Found,
    site: &'r LeakSite,
    /// How many steps may still be written.
    left: &'r Cell<usize>,
}

impl Serialize for PathList<'_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { analysis, symbols, found, site, left } = *self;
        // A path counts as one step besides its own.
        let ways = site.paths.iter().filter(|_| site.kind != Kind::Direct).take(MAX_WAYS);
        let ways = ways.map_while(|&node| (left.get() > 0).then(|| found.way(node))).flatten();
        serializer.collect_seq(ways.map(|(from, way)| {
            left.set(left.get().saturating_sub(way.len().max(1)));
            let steps = way.iter().zip(way.iter().skip(1)).take(MAX_STEPS).map(|(path, next)| StepForm {
                blocks: path.blocks.saturating_add(path.inner_blocks),
                bytes: path.bytes.saturating_add(path.inner_bytes),
                offset: next.offset,
                frames: FrameList { analysis, symbols, stack: path.stack },
            });
            let last = way.last();
            PathForm {
                root: RootForm::of(analysis, from),
                offset: way.first().map_or(0, |first| first.offset),
                steps: steps.collect::<Vec<_>>(),
                more_steps: way.len().saturating_sub(MAX_STEPS + 1),
                blocks: last.map_or(0, |last| last.blocks.saturating_add(last.inner_blocks)),
                bytes: last.map_or(0, |last| last.bytes.saturating_add(last.inner_bytes)),
            }
        }))
    }
}

#[derive(Serialize)]
struct PathForm<'r, 's, 'a> {
    root: RootForm,
    offset: u64,
    steps: Vec<StepForm<'r, 's, 'a>>,
    more_steps: usize,
    blocks: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct StepForm<'r, 's, 'a> {
    blocks: u64,
    bytes: u64,
    offset: u64,
    frames: FrameList<'r, 's, 'a>,
}

#[derive(Serialize)]
struct RootForm {
    kind: &'static str,
    text: String,
    name: Option<String>,
    module: Option<String>,
    address: Option<Hex>,
    thread: Option<u32>,
}

impl RootForm {
    fn of(analysis: &Analysis, of: &Root) -> Self {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            kind: root_name(of.kind),
            text: root(analysis, of),
            name: (!of.name.is_empty()).then(|| lossy(&of.name)),
            module: analysis.modules.get(of.module).map(|module| lossy(&module.path)),
            address: (of.address != 0).then_some(Hex(of.address)),
            thread: (of.thread != 0).then_some(of.thread),
        }
    }
}
