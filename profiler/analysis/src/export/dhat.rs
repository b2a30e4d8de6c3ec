//! What Valgrind's DHAT writes (file version 2): `dh_view.html` and the Firefox Profiler open it.
//!
//! It says of each stack what it allocated, how long its blocks lived, the most that it held, and what it held at the peak
//! and at the end. Frames have their addresses, as DHAT's own have: the viewer wants no two stacks with the same frames.

use super::command;
use super::labels::Labels;
use crate::Analysis;
use crate::hash::FoldHash;
use crate::live::{Block, Totals, Watcher};
use crate::merge::canonical_nodes;
use crate::peak::{PeakClock, PeakShare};
use crate::replay::{Player, replay};
use crate::symbols::Symbols;
use grapnel_trace::reader::Reader;
use serde::Serialize;
use std::collections::HashMap;
use std::io::{self, Read, Write};

/// Nanoseconds of a unit of time.
const TICK: u64 = 1000;
/// The mean lifetime up to which blocks are shown as short-lived, in these units: a trace's times are no finer.
const SHORT: u64 = 10_000;

pub(super) fn write<R: Read + Send>(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    reader: Reader<R>,
) -> io::Result<()> {
    let mut labels = Labels::default();
    let (stacks, point_of) = points(analysis, symbols, &mut labels);
    let mut player =
        Lives { points: vec![Point::default(); stacks.len()], point_of, clock: PeakClock::default(), now: 0 };
    replay(reader, analysis, &mut player)?;
    let Totals { duration_ns, peak_time_ns, .. } = analysis.totals;
    let Lives { points, clock, now, .. } = player;
    let end = (duration_ns / TICK).max(now);
    let first = "[root]".to_owned();
    let file = File {
        dhat_file_version: 2,
        mode: "grapnel",
        verb: "Allocated",
        bklt: true,
        bkacc: false,
        tu: "µs",
        mtu: "s",
        tuth: SHORT,
        cmd: command(analysis),
        pid: analysis.process.pid,
        te: end,
        tg: peak_time_ns / TICK,
        pps: points.iter().zip(&stacks).map(|(point, stack)| point.form(stack, clock, end)).collect(),
        ftbl: std::iter::once(&first).chain(labels.texts()).collect(),
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}

/// The distinct stacks of all sites as numbers of frames, and which of them each node is.
fn points(analysis: &Analysis, symbols: &mut Symbols<'_>, labels: &mut Labels) -> (Vec<Vec<u32>>, Vec<u32>) {
    let mut stacks: Vec<Vec<u32>> = Vec::new();
    let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
    let mut point_of_site: HashMap<u32, u32, FoldHash> = HashMap::default();
    for site in &analysis.sites {
        let mut frames = Vec::new();
        for node in analysis.stacks.frames(site.stack) {
            // 0 is the root.
            frames.extend(labels.of_node(analysis, symbols, &node).iter().map(|label| label + 1));
        }
        if frames.is_empty() {
            frames.push(labels.of_no_stack() + 1);
        }
        let next = stacks.len() as u32;
        let point = *known.entry(frames).or_insert_with_key(|frames| {
            stacks.push(frames.clone());
            next
        });
        point_of_site.insert(site.stack, point);
    }
    let canonical = canonical_nodes(&analysis.stacks, &analysis.modules);
    // No block has a stack that is no site's.
    let point_of = canonical.iter().map(|stack| point_of_site.get(stack).copied().unwrap_or(0)).collect();
    (stacks, point_of)
}

/// What is added up of a stack.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    blocks: u64,
    bytes: u64,
    live_blocks: u64,
    live_bytes: u64,
    most_blocks: u64,
    most_bytes: u64,
    peak_blocks: PeakShare,
    peak_bytes: PeakShare,
    /// The moments at which blocks went, less those at which they came. With those at the end that is how long all lived.
    lived: u64,
}

impl Point {
    fn form<'f>(&self, stack: &'f [u32], clock: PeakClock, end: u64) -> PointForm<'f> {
        PointForm {
            tb: self.bytes,
            tbk: self.blocks,
            tl: self.lived.wrapping_add(self.live_blocks.wrapping_mul(end)),
            mb: self.most_bytes,
            mbk: self.most_blocks,
            gb: clock.share(&self.peak_bytes, self.live_bytes),
            gbk: clock.share(&self.peak_blocks, self.live_blocks),
            eb: self.live_bytes,
            ebk: self.live_blocks,
            fs: stack,
        }
    }
}

struct Lives {
    points: Vec<Point>,
    /// By node.
    point_of: Vec<u32>,
    clock: PeakClock,
    /// In units of the file.
    now: u64,
}

impl Lives {
    /// The point that a change concerns, as it is to be before the change.
    fn point(&mut self, stack: u32) -> Option<&mut Point> {
        let at = *self.point_of.get(stack as usize)?;
        let point = self.points.get_mut(at as usize)?;
        self.clock.before_change(&mut point.peak_bytes, point.live_bytes);
        self.clock.before_change(&mut point.peak_blocks, point.live_blocks);
        Some(point)
    }

    fn hold(&mut self, block: Block, peak: bool, allocated: u64) {
        let now = self.now;
        if let Some(point) = self.point(block.stack) {
            point.blocks += allocated;
            point.bytes = point.bytes.saturating_add(allocated * block.size);
            point.live_blocks += 1;
            point.live_bytes = point.live_bytes.wrapping_add(block.size);
            point.lived = point.lived.wrapping_sub(now);
            if point.live_bytes > point.most_bytes {
                (point.most_bytes, point.most_blocks) = (point.live_bytes, point.live_blocks);
            }
        }
        if peak {
            self.clock.new_peak();
        }
    }
}

impl Watcher for Lives {
    fn added(&mut self, _: u64, block: Block, peak: bool) {
        self.hold(block, peak, 1);
    }

    fn removed(&mut self, _: u64, block: Block, _: bool) {
        let now = self.now;
        if let Some(point) = self.point(block.stack) {
            point.live_blocks -= 1;
            point.live_bytes = point.live_bytes.wrapping_sub(block.size);
            point.lived = point.lived.wrapping_add(now);
        }
    }

    fn restored(&mut self, _: u64, block: Block, peak: bool) {
        self.hold(block, peak, 0);
    }
}

impl Player for Lives {
    fn moment(&mut self, ns: u64, _: &Totals) {
        self.now = ns / TICK;
    }
}

/// The names are the format's, which `dhat/dh_main.c` in Valgrind's sources explains.
#[derive(Serialize)]
struct File<'f> {
    #[serde(rename = "dhatFileVersion")]
    dhat_file_version: u32,
    mode: &'static str,
    verb: &'static str,
    bklt: bool,
    bkacc: bool,
    tu: &'static str,
    #[serde(rename = "Mtu")]
    mtu: &'static str,
    tuth: u64,
    cmd: String,
    pid: u32,
    te: u64,
    tg: u64,
    pps: Vec<PointForm<'f>>,
    ftbl: Vec<&'f String>,
}

#[derive(Serialize)]
struct PointForm<'f> {
    tb: u64,
    tbk: u64,
    tl: u64,
    mb: u64,
    mbk: u64,
    gb: u64,
    gbk: u64,
    eb: u64,
    ebk: u64,
    fs: &'f [u32],
}
