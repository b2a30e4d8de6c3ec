//! A profile for the Firefox Profiler, in its processed form, version 55: native allocations and a track of memory.
//!
//! All stands in one thread, as Firefox itself has it, so that what one thread got and another gave back is one block. A row
//! of the allocations is a [group](groups): its bytes positive where they came, negative where they went, and a number
//! of its own in place of an address, by which the profiler finds what was retained.
//!
//! The crate `fxprof-processed-profile` writes such profiles too. It knows frames as addresses that are still to be looked
//! up, or as names without files and lines.

mod form;
mod groups;
mod tables;

use super::command;
use crate::Analysis;
use crate::merge::canonical_nodes;
use crate::replay::replay;
use crate::symbols::Symbols;
use form::{Allocations, Counter, CounterSamples, Empty, File, Meta, Samples, Thread};
use grapnel_trace::reader::Reader;
use groups::{Group, Groups};
use std::io::{self, Read, Write};
use tables::Tables;

/// Points of the track of memory, about.
const POINTS: u64 = 2000;
const NS_PER_MS: f64 = 1e6;

pub(super) fn write<R: Read + Send>(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    reader: Reader<R>,
) -> io::Result<()> {
    let totals = &analysis.totals;
    let canonical = canonical_nodes(&analysis.stacks, &analysis.modules);
    let mut player = Groups::new(canonical, totals.duration_ns / POINTS);
    let live = replay(reader, analysis, &mut player)?;
    let mut line = std::mem::take(&mut player.line);
    line.retain(|&(ns, _)| ns < totals.duration_ns);
    let at = line.partition_point(|&(ns, _)| ns <= totals.peak_time_ns);
    line.insert(at, (totals.peak_time_ns, totals.peak_bytes));
    line.push((totals.duration_ns.max(totals.peak_time_ns), totals.live_bytes));
    let (groups, slice) = player.finish(live.blocks());
    let mut tables = Tables::default();
    let allocations = rows(&groups, |stack| tables.stack(analysis, symbols, stack));
    let name = command(analysis);
    let pid = analysis.process.pid.to_string();
    let end = totals.duration_ns as f64 / NS_PER_MS;
    let file = File {
        meta: Meta::new(&name, analysis.process.started_unix_ns as f64 / NS_PER_MS, slice),
        libs: &tables.libs,
        pages: Empty,
        profiler_overhead: Empty,
        counters: [counter(&line, &pid)],
        threads: [Thread {
            name: "heap",
            process_name: &name,
            is_main_thread: true,
            pid: &pid,
            tid: &pid,
            register_time: 0.0,
            unregister_time: end,
            process_startup_time: 0.0,
            process_shutdown_time: end,
            process_type: "default",
            paused_ranges: Empty,
            show_markers_in_timeline: false,
            markers: form::Markers::default(),
            samples: Samples::default(),
            native_symbols: form::NativeSymbols::default(),
            native_allocations: allocations,
            stack_table: tables.stacks.form(),
            frame_table: tables.frames.form(),
            func_table: tables.functions.form(),
            resource_table: tables.resources.form(),
            string_array: &tables.strings,
        }],
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}

/// What came and what went, in the order of time.
fn rows(groups: &[Group], mut stack_of: impl FnMut(u32) -> u32) -> Allocations {
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * groups.len());
    for (number, group) in groups.iter().enumerate() {
        events.push((group.born, false, number));
        events.extend(group.died.map(|died| (died, true, number)));
    }
    // What came in a slice comes before what went in it.
    events.sort_unstable();
    let mut rows = Allocations::default();
    for (time, went, number) in events {
        let group = groups[number];
        let bytes = i64::try_from(group.bytes).unwrap_or(i64::MAX);
        rows.time.push(time);
        rows.weight.push(if went { -bytes } else { bytes });
        rows.stack.push(stack_of(group.stack));
        rows.memory_address.push(number as u64 + 1);
        rows.thread_id.push(0);
    }
    rows.length = rows.time.len();
    rows
}

fn counter<'f>(line: &[(u64, u64)], pid: &'f str) -> Counter<'f> {
    let mut samples = CounterSamples::default();
    let (mut last_ns, mut last_bytes) = (0, 0);
    for &(ns, bytes) in line {
        samples.count.push(bytes.wrapping_sub(last_bytes).cast_signed());
        samples.time_deltas.push((ns - last_ns) as f64 / NS_PER_MS);
        (last_ns, last_bytes) = (ns, bytes);
    }
    samples.length = line.len();
    let description = "Bytes that were live";
    Counter { name: "malloc", category: "Memory", description, pid, main_thread_index: 0, samples }
}
