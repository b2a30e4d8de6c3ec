//! What a page says of memory that is no part of its figures: mappings, and heaps besides the program's own.
//!
//! It is told as it stands at the end of the recording, whatever the range, so each site comes with its stack as text.

use crate::Analysis;
use crate::mappings::MappingSite;
use crate::report::words::{harmless, mapped_name};
use crate::sites::Site;
use crate::symbols::Symbols;
use grapnel_trace::HeapKind;
use serde::Serialize;

/// Sites that are told of each, and of all together; frames of each of them.
const MOST_SITES: usize = 50;
const MOST_IN_ALL: usize = 400;
const MOST_FRAMES: usize = 40;

#[derive(Serialize)]
pub(super) struct Other {
    /// "mappings", "pool", "allocator".
    kind: &'static str,
    name: String,
    /// Calls that gave memory, and their bytes.
    count: u64,
    bytes: u64,
    peak_bytes: u64,
    peak_time_ns: u64,
    live: u64,
    live_bytes: u64,
    sites: Vec<OtherSite>,
    /// How many more sites there are.
    more: usize,
}

#[derive(Serialize)]
struct OtherSite {
    /// What a mapping is of.
    what: String,
    count: u64,
    bytes: u64,
    peak: u64,
    live: u64,
    /// Function and place of each frame, from the one that allocated.
    stack: Vec<(String, String)>,
}

/// All that there are.
pub(super) fn others(analysis: &Analysis, symbols: &mut Symbols<'_>) -> Vec<Other> {
    let mut teller = Teller { analysis, symbols, left: MOST_IN_ALL };
    let mappings = &analysis.mappings;
    let mut all = Vec::new();
    if mappings.totals.mappings > 0 {
        let of = |site: &MappingSite| (site.figures.peak_bytes, site.stack);
        let (sites, more) = teller.sites(&mappings.sites, of, |site, stack| OtherSite {
            what: site.kinds().map(mapped_name).collect::<Vec<_>>().join(", "),
            count: site.figures.mappings,
            bytes: site.figures.mapped_bytes,
            peak: site.figures.peak_bytes,
            live: site.figures.live_bytes,
            stack,
        });
        all.push(Other {
            kind: "mappings",
            name: String::new(),
            count: mappings.totals.mappings,
            bytes: mappings.totals.mapped_bytes,
            peak_bytes: mappings.totals.peak_bytes,
            peak_time_ns: mappings.peak_time_ns,
            live: mappings.totals.live_mappings,
            live_bytes: mappings.totals.live_bytes,
            sites,
            more,
        });
    }
    for heaps in &analysis.heaps {
        let of = |site: &Site| (site.peak_bytes, site.stack);
        let (sites, more) = teller.sites(&heaps.sites, of, |site, stack| OtherSite {
            what: String::new(),
            count: site.allocations,
            bytes: site.allocated_bytes,
            peak: site.peak_bytes,
            live: site.live_bytes,
            stack,
        });
        let totals = &heaps.totals;
        all.push(Other {
            kind: if heaps.kind == HeapKind::Pool { "pool" } else { "allocator" },
            name: harmless(&String::from_utf8_lossy(&heaps.name)).into_owned(),
            count: totals.allocations.saturating_add(totals.reallocations),
            bytes: totals.allocated_bytes,
            peak_bytes: totals.peak_bytes,
            peak_time_ns: totals.peak_time_ns,
            live: totals.live_allocations,
            live_bytes: totals.live_bytes,
            sites,
            more,
        });
    }
    all
}

/// The last part of a path.
fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

struct Teller<'t, 'a> {
    analysis: &'t Analysis,
    symbols: &'t mut Symbols<'a>,
    left: usize,
}

impl Teller<'_, '_> {
    /// The sites with the most at the peak, and how many more there are. `of` gives what a site held then, and its stack.
    fn sites<S>(
        &mut self,
        sites: &[S],
        of: impl Fn(&S) -> (u64, u32),
        form: impl Fn(&S, Vec<(String, String)>) -> OtherSite,
    ) -> (Vec<OtherSite>, usize) {
        let mut order: Vec<&S> = sites.iter().collect();
        order.sort_by_key(|site| core::cmp::Reverse(of(site).0));
        let told = order.len().min(MOST_SITES).min(self.left);
        self.left -= told;
        let told = order[..told].iter().map(|site| form(site, self.stack(of(site).1))).collect::<Vec<_>>();
        let more = sites.len() - told.len();
        (told, more)
    }

    fn stack(&mut self, stack: u32) -> Vec<(String, String)> {
        stack_text(self.analysis, self.symbols, stack)
    }
}

/// Function and place of each frame of a stack, from the one that allocated; the innermost of a deep one.
pub(super) fn stack_text(
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    stack: u32,
) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for node in analysis.stacks.frames(stack) {
        let module = analysis.modules.get(node.module);
        let path = module.map(|module| String::from_utf8_lossy(&module.path));
        let module_name = path.as_deref().map_or("", base_name);
        let offset = node.pc.wrapping_sub(module.map_or(0, |module| module.bias));
        for frame in symbols.frames(&analysis.modules, &node) {
            if out.len() == MOST_FRAMES {
                out.push(("…".to_owned(), String::new()));
                return out;
            }
            let name = match node.mark().or(frame.function()) {
                Some(name) => harmless(name).into_owned(),
                None => format!("{}+{offset:#x}", harmless(module_name)),
            };
            let line = match (frame.file(), frame.line()) {
                (Some(file), Some(line)) => format!("{}:{line}", base_name(file)),
                _ => String::new(),
            };
            let marks = if frame.inlined() { "inlined" } else { "" };
            let parts = [line.as_str(), module_name, marks];
            let place = parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>();
            out.push((name, harmless(&place.join(" · ")).into_owned()));
        }
    }
    out
}
