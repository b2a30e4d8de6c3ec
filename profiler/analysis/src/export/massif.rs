//! What Valgrind's Massif writes: `ms_print` and massif-visualizer open it.
//!
//! Snapshots of the live bytes at equal distances, one more at the peak and one at the end; these two say which stacks held
//! them. Like Massif's own, their trees leave out what held less than a hundredth.

use super::labels::Labels;
use super::{Measure, command};
use crate::Analysis;
use crate::live::{Block, Totals, Watcher};
use crate::replay::{Player, replay};
use crate::report::words::harmless;
use crate::symbols::Symbols;
use grapnel_trace::reader::Reader;
use std::collections::HashMap;
use std::io::{self, Read, Write};

/// How many snapshots there are beside those with trees: as many as Massif makes.
const SNAPSHOTS: u64 = 100;

/// A frame that held less than one part in so many is not told by itself.
const THRESHOLD: u64 = 100;

pub(super) fn write<R: Read + Send>(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    reader: Reader<R>,
) -> io::Result<()> {
    let Totals { peak_bytes, peak_time_ns, live_bytes, duration_ns, .. } = analysis.totals;
    let mut line = Line { points: vec![(0, 0)], step: (duration_ns / SNAPSHOTS).max(1) };
    replay(reader, analysis, &mut line)?;
    // The peak and the end have snapshots of their own.
    line.points.retain(|&(time, bytes)| time < duration_ns && bytes <= peak_bytes);
    writeln!(out, "desc: grapnel {}", harmless(&String::from_utf8_lossy(&analysis.process.recorder)))?;
    writeln!(out, "cmd: {}", command(analysis))?;
    writeln!(out, "time_unit: ms")?;
    let before = line.points.partition_point(|&(time, _)| time <= peak_time_ns);
    let mut trees = Trees { analysis, symbols, labels: Labels::default() };
    let mut number = 0;
    let (early, late) = line.points.split_at(before);
    for &point in early {
        snapshot(out, &mut number, point, "empty")?;
    }
    snapshot(out, &mut number, (peak_time_ns, peak_bytes), "peak")?;
    trees.write(out, Measure::Peak)?;
    for &point in late {
        snapshot(out, &mut number, point, "empty")?;
    }
    snapshot(out, &mut number, (duration_ns.max(peak_time_ns), live_bytes), "detailed")?;
    trees.write(out, Measure::Live)
}

fn snapshot(out: &mut impl Write, number: &mut u64, (ns, bytes): (u64, u64), tree: &str) -> io::Result<()> {
    writeln!(out, "#-----------\nsnapshot={number}\n#-----------\ntime={}", ns / 1_000_000)?;
    writeln!(out, "mem_heap_B={bytes}\nmem_heap_extra_B=0\nmem_stacks_B=0\nheap_tree={tree}")?;
    *number += 1;
    Ok(())
}

/// The live bytes at moments that are at least a step apart.
struct Line {
    points: Vec<(u64, u64)>,
    step: u64,
}

impl Player for Line {
    fn moment(&mut self, ns: u64, totals: &Totals) {
        let last = self.points.last().map_or(0, |&(time, _)| time);
        if ns.saturating_sub(last) >= self.step {
            self.points.push((ns, totals.live_bytes));
        }
    }
}

impl Watcher for Line {
    fn added(&mut self, _: u64, _: Block, _: bool) {}
    fn removed(&mut self, _: u64, _: Block, _: bool) {}
    fn restored(&mut self, _: u64, _: Block, _: bool) {}
}

/// A stack's bytes, and how far it has been looked at: the node, and how many of its frames are done.
#[derive(Clone, Copy)]
struct Held {
    node: u32,
    done: usize,
    bytes: u64,
}

/// A frame with what the stacks through it held.
struct Caller {
    label: u32,
    bytes: u64,
    stacks: Vec<Held>,
}

/// Frames that are told together.
#[derive(Default)]
struct Below {
    places: usize,
    bytes: u64,
}

struct Trees<'a, 's> {
    analysis: &'a Analysis,
    symbols: &'a mut Symbols<'s>,
    labels: Labels,
}

impl Trees<'_, '_> {
    fn write(&mut self, out: &mut impl Write, measure: Measure) -> io::Result<()> {
        let sites = self.analysis.sites.iter().filter(|site| measure.of(site) > 0);
        let held: Vec<Held> =
            sites.map(|site| Held { node: site.stack, done: 0, bytes: measure.of(site) }).collect();
        let whole: u64 = held.iter().map(|held| held.bytes).sum();
        let text = "(heap allocation functions) malloc/new/new[], --alloc-fns, etc.".to_owned();
        // A frame, what it held, and what is still to be said of its callers. A stack of our own, as stacks are deep.
        let mut pending = vec![(0, text, whole, held)];
        while let Some((depth, text, bytes, held)) = pending.pop() {
            let (callers, below) = self.callers(held, whole);
            let children = callers.len() + usize::from(below.places > 0);
            writeln!(out, "{:depth$}n{children}: {bytes} {text}", "")?;
            if below.places > 0 {
                let text = match below.places {
                    1 => "in 1 place, below massif's threshold (1.00%)".to_owned(),
                    places => format!("in {places} places, all below massif's threshold (1.00%)"),
                };
                pending.push((depth + 1, text, below.bytes, Vec::new()));
            }
            for Caller { label, bytes, stacks } in callers.into_iter().rev() {
                pending.push((depth + 1, self.labels.text(label).to_owned(), bytes, stacks));
            }
        }
        Ok(())
    }

    /// The frames that come next, those that held most first.
    fn callers(&mut self, held: Vec<Held>, whole: u64) -> (Vec<Caller>, Below) {
        let mut groups: HashMap<u32, Caller> = HashMap::new();
        for held in held {
            if let Some((label, next)) = self.next(held) {
                let caller =
                    groups.entry(label).or_insert_with(|| Caller { label, bytes: 0, stacks: Vec::new() });
                caller.bytes += held.bytes;
                caller.stacks.push(next);
            }
        }
        let (mut callers, few): (Vec<Caller>, Vec<Caller>) =
            groups.into_values().partition(|caller| caller.bytes >= whole / THRESHOLD);
        callers.sort_by_key(|caller| (std::cmp::Reverse(caller.bytes), caller.label));
        let below = few.iter().fold(Below::default(), |below, caller| Below {
            places: below.places + 1,
            bytes: below.bytes + caller.bytes,
        });
        (callers, below)
    }

    /// The next frame of a stack; `None` behind its last.
    fn next(&mut self, held: Held) -> Option<(u32, Held)> {
        let analysis = self.analysis;
        let Some(node) = analysis.stacks.node(held.node) else {
            // A site without a stack, as opposed to a stack that ends here.
            let first = held.done == 0;
            let label = first.then(|| self.labels.of_no_stack())?;
            return Some((label, Held { done: 1, ..held }));
        };
        let labels = self.labels.of_node(analysis, self.symbols, &node);
        let &label = labels.get(held.done)?;
        let next = match held.done + 1 < labels.len() {
            true => Held { done: held.done + 1, ..held },
            // 1 where there is no more: see above.
            false => Held { node: node.parent, done: usize::from(node.parent == 0), ..held },
        };
        Some((label, next))
    }
}
