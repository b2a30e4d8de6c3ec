//! What a page says of a look for leaks: lost blocks, and what holds the others.
//!
//! It is of one moment, whatever the range, so each site comes with its stack and its paths as text.

use super::others::stack_text;
use crate::Analysis;
use crate::leaks::found::Count;
use crate::leaks::text::{self, MOST_STEPS};
use crate::leaks::{Found, Kind, LeakSite, words};
use crate::symbols::Symbols;
use grapnel_trace::leaks::{Path, RootKind};
use serde::Serialize;

/// Sites that are told of each kind, paths of each of them.
const MOST_SITES: usize = 60;
const MOST_PATHS: usize = 4;

#[derive(Serialize)]
pub(super) struct Leaks {
    at_exit: bool,
    time_ns: u64,
    stopped_ns: u64,
    notes: Vec<&'static str>,
    /// In the order of [`Kind::ALL`].
    kinds: [Told; 4],
}

#[derive(Serialize)]
struct Told {
    kind: &'static str,
    name: &'static str,
    #[serde(flatten)]
    total: Count,
    sites: Vec<SiteForm>,
    /// How many more sites there are.
    more: usize,
}

#[derive(Serialize)]
struct SiteForm {
    #[serde(flatten)]
    own: Count,
    /// What hangs on them.
    holds: Count,
    stack: Vec<(String, String)>,
    paths: Vec<PathForm>,
    /// How many more paths there are.
    more: usize,
}

#[derive(Serialize)]
struct PathForm {
    #[serde(flatten)]
    own: Count,
    root: String,
    /// The blocks on the way, and where in each the pointer to the next lies. Nothing for the middle of a long way.
    steps: Vec<Option<(String, u64)>>,
}

/// What was found, if leaks were looked for.
pub(super) fn leaks(analysis: &Analysis, symbols: &mut Symbols<'_>) -> Option<Leaks> {
    let found = analysis.leaks.as_ref()?;
    let scan = &found.scan;
    let kinds = Kind::ALL.map(|kind| {
        let sites: Vec<&LeakSite> = found.of(kind).collect();
        let told = sites.len().min(MOST_SITES);
        Told {
            kind: words::kind_name(kind),
            name: words::kind(kind),
            total: found.total(kind),
            sites: sites[..told].iter().map(|site| site_form(analysis, symbols, found, site)).collect(),
            more: sites.len() - told,
        }
    });
    let (time_ns, stopped_ns) = (scan.time_ns, scan.stopped_ns);
    Some(Leaks { at_exit: scan.at_exit, time_ns, stopped_ns, notes: words::doubts(scan), kinds })
}

fn site_form(analysis: &Analysis, symbols: &mut Symbols<'_>, found: &Found, site: &LeakSite) -> SiteForm {
    let has_paths = !matches!(site.kind, Kind::Direct | Kind::Possible);
    let nodes = if has_paths { site.paths.as_slice() } else { &[] };
    let told = nodes.len().min(MOST_PATHS);
    SiteForm {
        own: site.own,
        holds: site.holds,
        stack: stack_text(analysis, symbols, site.stack),
        paths: nodes[..told].iter().filter_map(|&node| path_form(analysis, symbols, found, node)).collect(),
        more: nodes.len() - told,
    }
}

fn path_form(analysis: &Analysis, symbols: &mut Symbols<'_>, found: &Found, node: u32) -> Option<PathForm> {
    let (root, way) = found.way(node)?;
    let last: &Path = way.last()?;
    let root = match root.kind {
        RootKind::Lost if way.len() == 1 => "others of this stack".to_owned(),
        RootKind::Lost => "lost blocks".to_owned(),
        _ => words::root(analysis, root),
    };
    let count = way.len() - 1;
    let mut steps = Vec::new();
    for (at, (path, next)) in way.iter().zip(&way[1..]).enumerate() {
        if count <= MOST_STEPS || at < MOST_STEPS / 2 || at >= count - MOST_STEPS / 2 {
            steps.push(Some((text::step(analysis, symbols, path), next.offset)));
        } else if at == MOST_STEPS / 2 {
            steps.push(None);
        }
    }
    let own = Count {
        blocks: last.blocks.saturating_add(last.inner_blocks),
        bytes: last.bytes.saturating_add(last.inner_bytes),
    };
    Some(PathForm { own, root, steps })
}
