//! What heaptrack's interpreter writes (its file format 3): `heaptrack_print` and heaptrack's window open it.
//!
//! A line for each thing; numbers are hexadecimal, and indices start at 1, with 0 for none, but for those of allocations.
//!
//! | line | what it is |
//! |---|---|
//! | `v VERSION FORMAT`, `X COMMAND`, `I PAGE_SIZE PAGES` | the head |
//! | `s LENGTH BYTES` | a string |
//! | `i PC MODULE [FUNCTION FILE LINE]...` | a place, the innermost inlined function first |
//! | `t PLACE CALLER` | a frame with the stack that called it |
//! | `a SIZE STACK` | what allocations of a size by a stack have in common |
//! | `+ A`, `- A`, `c MS` | one more, one less; the time |
//!
//! The lines of blocks don't come in the order in which it all happened, but in one in which heaptrack counts what is
//! temporary as a report does: see [`order`]. The first `a`, of no bytes, is no block's: `- 0` keeps two lines apart.

mod order;

use super::command;
use super::stack::{NO_STACK, name};
use crate::Analysis;
use crate::hash::FoldHash;
use crate::live::{Block, Totals};
use crate::replay::{Player, replay};
use crate::report::words::harmless;
use crate::stacks::Node;
use crate::symbols::{BEFORE, Symbols};
use grapnel_trace::reader::Reader;
use order::{Order, Told};
use std::collections::HashMap;
use std::io::{self, Read, Write};

/// What is said of the writer: heaptrack 1.4, the first with format 3.
const VERSION: &str = "v 10400 3";

pub(super) fn write<R: Read + Send>(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    reader: Reader<R>,
) -> io::Result<()> {
    writeln!(out, "{VERSION}")?;
    writeln!(out, "X {}", command(analysis))?;
    // The trace doesn't have the machine's memory.
    writeln!(out, "I 1000 0")?;
    let writer = Writer { out, analysis, symbols, known: Known::default(), ms: 0, result: Ok(()) };
    let mut order = Order::new(writer, analysis.totals.peak_bytes);
    replay(reader, analysis, &mut order)?;
    order.finish();
    order.told.tell_time(analysis.totals.duration_ns);
    order.told.result
}

/// The index of what was written before.
#[derive(Default)]
struct Known {
    strings: HashMap<String, u32>,
    /// By module, address and flags.
    places: HashMap<(u32, u64, u8), u32>,
    place_count: u32,
    /// Of the stack of each node; 0 as long as there is none.
    stacks: Vec<u32>,
    stack_count: u32,
    no_stack: u32,
    /// By size and node. 0 is none.
    allocations: HashMap<(u64, u32), u32, FoldHash>,
}

struct Writer<'w, 's, W> {
    out: &'w mut W,
    analysis: &'w Analysis,
    symbols: &'w mut Symbols<'s>,
    known: Known,
    /// The last time that was told.
    ms: u64,
    /// The first error.
    result: io::Result<()>,
}

impl<W: Write> Writer<'_, '_, W> {
    /// Writes a line, unless one before could not be written.
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        if self.result.is_ok() {
            self.result = self.out.write_fmt(text).and_then(|()| self.out.write_all(b"\n"));
        }
    }

    fn string(&mut self, text: &str) -> u32 {
        if let Some(&known) = self.known.strings.get(text) {
            return known;
        }
        let index = self.known.strings.len() as u32 + 1;
        self.known.strings.insert(text.to_owned(), index);
        self.line(format_args!("s {:x} {text}", text.len()));
        index
    }

    /// A place that is only a name.
    fn named(&mut self, name: &str) -> u32 {
        let function = self.string(name);
        self.known.place_count += 1;
        self.line(format_args!("i 0 0 {function:x}"));
        self.known.place_count
    }

    fn place(&mut self, node: &Node) -> u32 {
        let key = (node.module, node.pc, node.flags);
        if let Some(&known) = self.known.places.get(&key) {
            return known;
        }
        let index = match node.mark() {
            Some(mark) => self.named(mark),
            None if node.is_before() => self.named(BEFORE),
            None => self.found(node),
        };
        self.known.places.insert(key, index);
        index
    }

    /// A place with what symbols say of it.
    fn found(&mut self, node: &Node) -> u32 {
        let analysis = self.analysis;
        let module = analysis.modules.get(node.module);
        let module =
            module.map_or(0, |module| self.string(&harmless(&String::from_utf8_lossy(&module.path))));
        let frames: Vec<_> = self.symbols.frames(&analysis.modules, node).to_vec();
        let mut text = format!("i {:x} {module:x}", node.lookup_pc());
        // heaptrack names what has no function by its module.
        if frames.iter().any(|frame| frame.function().is_some()) {
            for frame in &frames {
                let function = self.string(&name(analysis, node, frame));
                let file = frame.file().map_or(0, |file| self.string(&harmless(file)));
                text.push_str(&format!(" {function:x} {file:x} {:x}", frame.line().unwrap_or(0)));
            }
        }
        self.line(format_args!("{text}"));
        self.known.place_count += 1;
        self.known.place_count
    }

    fn frame(&mut self, place: u32, caller: u32) -> u32 {
        self.line(format_args!("t {place:x} {caller:x}"));
        self.known.stack_count += 1;
        self.known.stack_count
    }

    fn stack(&mut self, stack: u32) -> u32 {
        let analysis = self.analysis;
        if analysis.stacks.node(stack).is_none() {
            if self.known.no_stack == 0 {
                let place = self.named(NO_STACK);
                self.known.no_stack = self.frame(place, 0);
            }
            return self.known.no_stack;
        }
        self.known.stacks.resize(analysis.stacks.len() + 1, 0);
        let mut new = Vec::new();
        let mut at = stack;
        while let Some(node) = analysis.stacks.node(at).filter(|_| self.known.stacks[at as usize] == 0) {
            new.push((at, node));
            at = node.parent;
        }
        for (id, node) in new.into_iter().rev() {
            let place = self.place(&node);
            self.known.stacks[id as usize] = self.frame(place, self.known.stacks[node.parent as usize]);
        }
        self.known.stacks[stack as usize]
    }

    fn is_later(&self, ns: u64) -> bool {
        ns / 1_000_000 > self.ms
    }

    fn tell_time(&mut self, ns: u64) {
        if self.is_later(ns) {
            let ms = ns / 1_000_000;
            self.ms = ms;
            self.line(format_args!("c {ms:x}"));
        }
    }
}

impl<W: Write> Told for Writer<'_, '_, W> {
    fn kind(&mut self, block: &Block) -> u32 {
        let key = (block.size, block.stack);
        if let Some(&known) = self.known.allocations.get(&key) {
            return known;
        }
        let stack = self.stack(block.stack);
        if self.known.allocations.is_empty() {
            // What heaptrack keeps where no block came since one went, is 0.
            self.line(format_args!("a 0 {stack:x}"));
        }
        let index = self.known.allocations.len() as u32 + 1;
        self.known.allocations.insert(key, index);
        self.line(format_args!("a {:x} {stack:x}", block.size));
        index
    }

    fn came(&mut self, kind: u32) {
        self.line(format_args!("+ {kind:x}"));
    }

    fn went(&mut self, kind: u32) {
        self.line(format_args!("- {kind:x}"));
    }

    fn apart(&mut self) {
        self.line(format_args!("- 0"));
    }
}

impl<W: Write> Player for Order<Writer<'_, '_, W>> {
    fn moment(&mut self, ns: u64, _: &Totals) {
        if self.told.is_later(ns) {
            self.before_time();
            self.told.tell_time(ns);
        }
    }

    fn goes_on(&self) -> bool {
        self.told.result.is_ok()
    }
}
