//! A tree and its history as bytes: numbers in columns, each as a varint, little end first, seven bits to a byte.
//!
//! `assets/model.js` reads this. In the order of the file, where `n[]` is a column of as many numbers as were counted before:
//!
//! - the form's version; the facts, as JSON with its length in bytes;
//! - the number of texts, their lengths, their bytes;
//! - the number of frames: functions, modules, files, lines, flags, offsets;
//! - the number of nodes: distances to parents, frames, each doubled and one more where the frame is a guess;
//! - the number of groups: nodes, each doubled and one more where it is folded; how many stacks are in it; blocks and bytes
//!   live at the end of the recording; families of functions as bits;
//! - 1 if the first bucket is all that came before the window; the number of buckets: lengths in nanoseconds, changes, peaks,
//!   bytes live at the end, allocations, bytes, temporary ones; then for each bucket the number of its classes of sizes that
//!   aren't empty, and of each its digits, allocations, bytes, growth in blocks and bytes;
//! - for each group the number of its cells; then, of all cells: distances to the bucket before, growth, growth at the peak,
//!   allocations, bytes, temporary ones.
//!
//! Growth may be negative: a number's sign is its lowest bit.

use super::fold::Group;
use super::tree::{NamedFrame, Tree};
use crate::Analysis;
use crate::history::{Bucket, Cell, History};

/// The form's version. A page has its own reader, so it only guards against mixing them up.
const VERSION: u64 = 1;

/// Writes varints.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn signed(&mut self, n: i64) {
        self.number((n << 1 ^ n >> 63) as u64);
    }

    fn column<T>(&mut self, rows: &[T], figure: impl Fn(&T) -> u64) {
        rows.iter().for_each(|row| self.number(figure(row)));
    }

    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text);
    }
}

/// Writes everything.
pub(super) fn encode(analysis: &Analysis, history: &History, tree: &Tree, facts: &[u8]) -> Vec<u8> {
    let mut out = Bytes::default();
    out.number(VERSION);
    out.text(facts);
    write_tree(&mut out, tree);
    write_groups(&mut out, analysis, history, tree);
    write_buckets(&mut out, history);
    let series = series_of(history, tree);
    out.column(&series, |cells| cells.len() as u64);
    for cells in &series {
        let mut last = 0;
        for &(bucket, _) in cells {
            out.number(u64::from(bucket - last));
            last = bucket;
        }
    }
    let cells = || series.iter().flatten().map(|(_, cell)| cell);
    cells().for_each(|cell| out.signed(cell.grown as i64));
    cells().for_each(|cell| out.signed(cell.grown_at_peak as i64));
    cells().for_each(|cell| out.number(cell.allocations));
    cells().for_each(|cell| out.number(cell.allocated_bytes));
    cells().for_each(|cell| out.number(cell.temporary.into()));
    out.0
}

fn write_tree(out: &mut Bytes, tree: &Tree) {
    let texts = &tree.texts.list;
    out.number(texts.len() as u64);
    out.column(texts, |text| text.len() as u64);
    texts.iter().for_each(|text| out.0.extend_from_slice(text.as_bytes()));
    let frames = &tree.frames;
    out.number(frames.len() as u64);
    let columns: [fn(&NamedFrame) -> u64; 6] = [
        |frame| frame.function.into(),
        |frame| frame.module.into(),
        |frame| frame.file.into(),
        |frame| frame.line.into(),
        |frame| frame.flags.into(),
        |frame| frame.offset,
    ];
    columns.into_iter().for_each(|column| out.column(frames, column));
    out.number(tree.nodes.len() as u64);
    for (number, node) in (1..).zip(&tree.nodes) {
        out.number(number - u64::from(node.parent));
    }
    for (node, &is_guess) in tree.nodes.iter().zip(&tree.is_guess[1..]) {
        out.number(u64::from(node.frame) << 1 | u64::from(is_guess));
    }
}

/// What is told of a group besides its cells.
#[derive(Clone, Copy, Default)]
struct Told {
    stacks: u64,
    live_allocations: u64,
    live_bytes: u64,
    sources: u64,
}

fn write_groups(out: &mut Bytes, analysis: &Analysis, history: &History, tree: &Tree) {
    let mut told = vec![Told::default(); tree.groups.len()];
    let mut group_of: Vec<u32> = vec![u32::MAX; history.canonical.len()];
    for (&stack, &group) in history.stacks.iter().zip(&tree.of_site) {
        group_of[stack as usize] = group;
    }
    for site in &analysis.sites {
        let Some(told) = told.get_mut(group_of[site.stack as usize] as usize) else { continue };
        told.stacks += 1;
        told.live_allocations = told.live_allocations.saturating_add(site.live_allocations);
        told.live_bytes = told.live_bytes.wrapping_add(site.live_bytes);
        told.sources |= site.sources.iter().fold(0, |bits, source| bits | 1 << source as u8);
    }
    out.number(tree.groups.len() as u64);
    out.column(&tree.groups, |group: &Group| u64::from(group.node) << 1 | u64::from(group.is_folded));
    out.column(&told, |told| told.stacks);
    out.column(&told, |told| told.live_allocations);
    out.column(&told, |told| told.live_bytes);
    out.column(&told, |told| told.sources);
}

fn write_buckets(out: &mut Bytes, history: &History) {
    let buckets: Vec<&Bucket> = history.all().collect();
    let whole = |figure| history.whole(figure);
    out.number(history.prelude.is_some().into());
    out.number(buckets.len() as u64);
    let mut start = 0;
    for bucket in &buckets {
        out.number(bucket.end_ns.saturating_sub(start));
        start = bucket.end_ns;
    }
    out.column(&buckets, |bucket| bucket.changes);
    out.column(&buckets, |bucket| whole(bucket.peak_bytes));
    out.column(&buckets, |bucket| whole(bucket.live_bytes));
    out.column(&buckets, |bucket| whole(bucket.allocations));
    out.column(&buckets, |bucket| whole(bucket.allocated_bytes));
    out.column(&buckets, |bucket| bucket.temporary);
    for bucket in buckets {
        let classes: Vec<_> = (0_u64..)
            .zip(bucket.sizes.iter())
            .filter(|(_, class)| class.allocations | class.grown_blocks | class.grown_bytes != 0)
            .collect();
        out.number(classes.len() as u64);
        for (digits, class) in classes {
            out.number(digits);
            out.number(whole(class.allocations));
            out.number(whole(class.allocated_bytes));
            out.signed(signed(history, class.grown_blocks));
            out.signed(signed(history, class.grown_bytes));
        }
    }
}

/// A figure that may have wrapped below 0.
fn signed(history: &History, figure: u64) -> i64 {
    let figure = figure as i64;
    let whole = history.whole(figure.unsigned_abs()) as i64;
    if figure < 0 { whole.wrapping_neg() } else { whole }
}

/// For each group its cells, with the numbers of their buckets.
fn series_of(history: &History, tree: &Tree) -> Vec<Vec<(u32, Cell)>> {
    let mut series: Vec<Vec<(u32, Cell)>> = vec![Vec::new(); tree.groups.len()];
    for (bucket, number) in history.all().zip(0..) {
        for cell in bucket.cells.iter() {
            let cells = &mut series[tree.of_site[cell.site as usize] as usize];
            match cells.last_mut() {
                Some((last, sum)) if *last == number => add(sum, &cell),
                _ => cells.push((number, cell)),
            }
        }
    }
    if history.in_units {
        series.iter_mut().for_each(|cells| round(history, cells));
    }
    series
}

fn add(sum: &mut Cell, cell: &Cell) {
    sum.temporary = sum.temporary.saturating_add(cell.temporary);
    sum.allocations = sum.allocations.saturating_add(cell.allocations);
    sum.allocated_bytes = sum.allocated_bytes.saturating_add(cell.allocated_bytes);
    sum.grown = sum.grown.wrapping_add(cell.grown);
    sum.grown_at_peak = sum.grown_at_peak.wrapping_add(cell.grown_at_peak);
}

/// Estimates as whole numbers, so that they never add up to another figure than the rounded sum.
fn round(history: &History, cells: &mut [(u32, Cell)]) {
    let (mut sum, mut told) = (Cell::default(), Cell::default());
    for (_, cell) in cells {
        let held = sum.grown;
        add(&mut sum, cell);
        let whole = Cell {
            allocations: history.whole(sum.allocations),
            allocated_bytes: history.whole(sum.allocated_bytes),
            grown: history.whole(sum.grown),
            ..sum
        };
        *cell = Cell {
            allocations: whole.allocations - told.allocations,
            allocated_bytes: whole.allocated_bytes - told.allocated_bytes,
            grown: whole.grown.wrapping_sub(told.grown),
            grown_at_peak: history.whole(held.wrapping_add(cell.grown_at_peak)).wrapping_sub(told.grown),
            ..*cell
        };
        told = whole;
    }
}
