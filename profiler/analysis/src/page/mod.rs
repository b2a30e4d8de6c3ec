//! A recording as one page of HTML, which needs no network and no other file.
//!
//! The page holds the tree of stacks once and, for each stack, what it did over time ([`crate::history`]), so that every
//! figure follows the range that its reader chooses. Its size is bounded: small stacks are folded into their callers
//! (`fold.rs`), the more of them the larger the recording is, and the page says so.
//!
//! All that comes from the recording is in one compressed block, as base64, and the script puts it on the page as text
//! only: nothing in it can be taken for markup. The policy in the head allows the page's own script and style, by their
//! checksums, and nothing else.

mod encode;
mod facts;
mod fold;
mod html;
mod leaks;
mod others;
mod tree;

use crate::Analysis;
use crate::history::History;
use crate::symbols::Symbols;
use encode::encode;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use fold::Shares;
use std::io::{self, Write};
use tree::Tree;

/// How much a page may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of its data, compressed. In base64 they take a third more.
    data: usize,
    /// Nodes and cells beyond which it isn't tried: looking up names and opening the page would take too long.
    nodes: usize,
    cells: usize,
}

impl Limits {
    /// Of a page that is kept, which stays below 5 MB.
    pub const FILE: Self = Self { data: 3_400_000, nodes: 200_000, cells: 1_000_000 };
    /// Of each of two on such a page.
    const HALF: Self = Self { data: 1_650_000, nodes: 100_000, cells: 500_000 };
    /// Of what a server sends.
    pub const LIVE: Self = Self { data: 8_000_000, nodes: 400_000, cells: 2_000_000 };
}

/// Parts of the whole below which stacks are folded: the first that gives data that isn't too large is taken.
const THRESHOLDS: [f32; 16] =
    [0.0, 1e-6, 3e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1];

/// A recording as the page's script reads it, compressed.
///
/// # Errors
/// What compressing gives: nothing, in memory.
pub fn data(
    analysis: &Analysis,
    history: &History,
    symbols: &mut Symbols<'_>,
    limits: Limits,
) -> io::Result<Vec<u8>> {
    let shares = Shares::new(analysis, history);
    let others = others::others(analysis, symbols);
    let leaks = leaks::leaks(analysis, symbols);
    let mut data = Vec::new();
    for threshold in THRESHOLDS {
        let folding = shares.fold(threshold);
        let is_last = threshold == THRESHOLDS[THRESHOLDS.len() - 1];
        let nodes = folding.is_shown.iter().filter(|&&shown| shown).count();
        if !is_last && (nodes > limits.nodes || cells(history, &folding.of_site) > limits.cells) {
            continue;
        }
        let tree = Tree::new(analysis, history, &folding, symbols);
        let told = (others.as_slice(), leaks.as_ref());
        let facts = facts::facts(analysis, told, &symbols.notes(), (folding.folded, threshold))?;
        let mut out = ZlibEncoder::new(Vec::new(), Compression::new(7));
        out.write_all(&encode(analysis, history, &tree, &facts))?;
        data = out.finish()?;
        if data.len() <= limits.data {
            break;
        }
    }
    Ok(data)
}

/// How many cells there are when sites are put together.
fn cells(history: &History, of_site: &[u32]) -> usize {
    let mut seen = vec![usize::MAX; of_site.len()];
    let mut count = 0;
    for (number, bucket) in history.all().enumerate() {
        for cell in bucket.cells.iter() {
            let group = of_site[cell.site as usize] as usize;
            if seen[group] != number {
                seen[group] = number;
                count += 1;
            }
        }
    }
    count
}

/// Writes the page.
///
/// # Errors
/// What writing gives.
pub fn write(
    out: &mut impl Write,
    analysis: &Analysis,
    history: &History,
    symbols: &mut Symbols<'_>,
) -> io::Result<()> {
    html::write(out, &[data(analysis, history, symbols, Limits::FILE)?], false)
}

/// A recording with all that is known of it.
pub type Recording<'r> = (&'r Analysis, &'r History);

/// Writes the page of a recording beside another, that of `before`.
///
/// # Errors
/// What writing gives.
pub fn write_compared(
    out: &mut impl Write,
    now: (Recording<'_>, &mut Symbols<'_>),
    before: (Recording<'_>, &mut Symbols<'_>),
) -> io::Result<()> {
    let now = data(now.0.0, now.0.1, now.1, Limits::HALF)?;
    let before = data(before.0.0, before.0.1, before.1, Limits::HALF)?;
    html::write(out, &[now, before], false)
}

/// Writes the page for a server that has the trace: it asks for `data?from=N&to=N`, which [`data`] is the answer to.
///
/// # Errors
/// What writing gives.
pub fn write_live(
    out: &mut impl Write,
    analysis: &Analysis,
    history: &History,
    symbols: &mut Symbols<'_>,
) -> io::Result<()> {
    html::write(out, &[data(analysis, history, symbols, Limits::LIVE)?], true)
}
