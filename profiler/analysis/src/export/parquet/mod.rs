//! Tables in Apache Parquet: of sites, and of events. DuckDB, Spark and their like read them, many files at once.
//!
//! `stack` is the same number in both tables of one trace. Numbers are signed, as not every engine knows others.

mod table;

use super::stack::frames;
use crate::Analysis;
use crate::live::{Block, Totals, Watcher};
use crate::merge::canonical_nodes;
use crate::replay::{Player, replay};
use crate::report::words::source_name;
use crate::symbols::Symbols;
use grapnel_trace::reader::Reader;
use parquet::data_type::ByteArray;
use std::io::{self, Read, Write};
use table::{Column, Table};

/// Rows that are kept before they are written.
const ROWS: usize = 1 << 17;

const SITES: &str = "message sites {
    required int32 stack;
    required int64 allocations;
    required int64 allocated_bytes;
    required int64 live_allocations;
    required int64 live_bytes;
    required int64 peak_bytes;
    required int64 temporary_allocations;
    required binary function (string);
    optional binary file (string);
    optional int32 line;
    required group frames (list) { repeated group list { required binary element (string); } }
}";

const EVENTS: &str = "message events {
    required int64 time_ns;
    required int32 thread;
    required binary event (string);
    required binary function (string);
    required int64 address;
    required int64 size;
    required int64 change;
    required int32 stack;
}";

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A row for each site: its figures, its leaf's function, file and line, and all its functions, leaf first.
pub(super) fn sites(out: &mut impl Write, analysis: &Analysis, symbols: &mut Symbols<'_>) -> io::Result<()> {
    let mut table = Table::new(out, SITES)?;
    // Stacks are long: fewer rows at a time.
    for sites in analysis.sites.chunks(ROWS / 16) {
        let mut figures: [Vec<i64>; 6] = Default::default();
        let (mut stacks, mut leaves) = (Vec::new(), Vec::new());
        let (mut files, mut lines) = (Column::optional_text(), Column::optional_int());
        let mut lists = Column::list();
        for site in sites {
            let row = [
                site.allocations,
                site.allocated_bytes,
                site.live_allocations,
                site.live_bytes,
                site.peak_bytes,
                site.temporary_allocations,
            ];
            for (column, figure) in figures.iter_mut().zip(row) {
                column.push(signed(figure));
            }
            stacks.push(site.stack.cast_signed());
            let mut names: Vec<ByteArray> = Vec::new();
            frames(analysis, symbols, site.stack, |_, frame| {
                if names.is_empty() {
                    files.push_text(frame.file);
                    lines.push_int(frame.line);
                }
                names.push(ByteArray::from(&*frame.name));
            });
            leaves.extend(names.first().cloned());
            lists.push_list(names);
        }
        let columns = [Column::Int(stacks)].into_iter().chain(figures.map(Column::Long));
        table.write(columns.chain([Column::Text(leaves), files, lines, lists]).collect())?;
    }
    table.finish()
}

/// A row for each block that came or went.
///
/// `event` is `allocated` (with the `function` that gave the block), `freed`, `reallocated` (the block was handed to a
/// `realloc`, whose new block is another row), or `restored` (that `realloc` failed). `thread`, `size` and `stack` are those of
/// the block, so `thread` is the one that got it. `change` is what the row adds to the live bytes.
pub(super) fn events<R: Read + Send>(
    out: &mut impl Write,
    analysis: &Analysis,
    reader: Reader<R>,
) -> io::Result<()> {
    let canonical = canonical_nodes(&analysis.stacks, &analysis.modules);
    let table = Table::new(out, EVENTS)?;
    let mut rows = Events { table, canonical, rows: Rows::default(), now: 0, result: Ok(()) };
    replay(reader, analysis, &mut rows)?;
    rows.write();
    rows.result?;
    rows.table.finish()
}

#[derive(Default)]
struct Rows {
    times: Vec<i64>,
    threads: Vec<i32>,
    events: Vec<ByteArray>,
    functions: Vec<ByteArray>,
    addresses: Vec<i64>,
    sizes: Vec<i64>,
    changes: Vec<i64>,
    stacks: Vec<i32>,
}

struct Events<'w, W: Write> {
    table: Table<'w, W>,
    canonical: Vec<u32>,
    rows: Rows,
    now: u64,
    result: io::Result<()>,
}

impl<W: Write> Events<'_, W> {
    fn push(&mut self, event: &'static str, address: u64, block: Block, sign: i64) {
        let stack = self.canonical.get(block.stack as usize).copied().unwrap_or(0);
        let rows = &mut self.rows;
        let size = signed(block.size);
        rows.times.push(signed(self.now));
        rows.threads.push(block.thread.cast_signed());
        rows.events.push(ByteArray::from(event));
        rows.functions.push(ByteArray::from(source_name(block.source)));
        rows.addresses.push(address.cast_signed());
        rows.sizes.push(size);
        rows.changes.push(sign * size);
        rows.stacks.push(stack.cast_signed());
        if rows.times.len() >= ROWS {
            self.write();
        }
    }

    fn write(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        if self.result.is_ok() && !rows.times.is_empty() {
            self.result = self.table.write(vec![
                Column::Long(rows.times),
                Column::Int(rows.threads),
                Column::Text(rows.events),
                Column::Text(rows.functions),
                Column::Long(rows.addresses),
                Column::Long(rows.sizes),
                Column::Long(rows.changes),
                Column::Int(rows.stacks),
            ]);
        }
    }
}

impl<W: Write> Watcher for Events<'_, W> {
    fn added(&mut self, address: u64, block: Block, _: bool) {
        self.push("allocated", address, block, 1);
    }

    fn removed(&mut self, address: u64, block: Block, freed: bool) {
        self.push(if freed { "freed" } else { "reallocated" }, address, block, -1);
    }

    fn restored(&mut self, address: u64, block: Block, _: bool) {
        self.push("restored", address, block, 1);
    }
}

impl<W: Write> Player for Events<'_, W> {
    fn moment(&mut self, ns: u64, _: &Totals) {
        self.now = ns;
    }

    fn goes_on(&self) -> bool {
        self.result.is_ok()
    }
}
