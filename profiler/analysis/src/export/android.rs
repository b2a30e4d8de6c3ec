//! Android's native heap dump, version 1.2, as its `libc_malloc_debug` writes it: the blocks that were live at the end.
//!
//! ```text
//! z ZYGOTE_CHILD  sz SIZE  num    BLOCKS  bt PC PC...
//!   bt_info {"MAP" RELATIVE_PC "FUNCTION" OFFSET}...
//! ```
//! A line for each size of each stack, in the order of the bytes that they held; the leaf comes first. Where a function
//! begins is not known here, so the offset in it is always 0. The mappings of the process follow.
//!
//! The format has no escapes: Android writes names between `"` as they are, and so are they written here, as
//! `operator"" _kb` has two. Only what a reader would take for a name's end, `"` before a number and what stands behind it,
//! becomes `'`.

use super::stack::{NO_STACK, name};
use crate::Analysis;
use crate::hash::FoldHash;
use crate::live::{Block, Totals, Watcher};
use crate::merge::canonical_nodes;
use crate::replay::{Player, replay};
use crate::report::words::harmless;
use crate::stacks::Node;
use crate::symbols::Symbols;
use grapnel_trace::Module;
use grapnel_trace::reader::Reader;
use std::collections::HashMap;
use std::io::{self, Read, Write};

pub(super) fn write<R: Read + Send>(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    reader: Reader<R>,
) -> io::Result<()> {
    let mut end = End { canonical: canonical_nodes(&analysis.stacks, &analysis.modules), ..End::default() };
    replay(reader, analysis, &mut end)?;
    let mut records: Vec<((u64, u32), u64)> = end.live.into_iter().collect();
    records.sort_by_key(|&((size, stack), count)| {
        (std::cmp::Reverse(size.saturating_mul(count)), std::cmp::Reverse(size), stack)
    });
    let depth = records.iter().map(|&((_, stack), _)| analysis.stacks.frames(stack).count()).max();
    writeln!(out, "Android Native Heap Dump v1.2\n")?;
    // There is none but on Android.
    writeln!(out, "Build fingerprint: 'unknown'\n")?;
    writeln!(out, "Total memory: {}", analysis.totals.live_bytes)?;
    writeln!(out, "Allocation records: {}", records.len())?;
    writeln!(out, "Backtrace size: {}\n", depth.unwrap_or(0))?;
    for ((size, stack), count) in records {
        write!(out, "z 0  sz {size:8}  num    {count}  bt")?;
        let nodes = || analysis.stacks.frames(stack).filter(|node| !node.is_truncation());
        for node in nodes() {
            write!(out, " {:x}", node.lookup_pc())?;
        }
        write!(out, "\n  bt_info")?;
        if stack == 0 {
            write!(out, " {{\"\" 0 \"{NO_STACK}\" 0}}")?;
        }
        for node in nodes() {
            frame(out, analysis, symbols, &node)?;
        }
        if let Some(mark) = analysis.stacks.frames(stack).find_map(|node| node.mark()) {
            write!(out, " {{\"\" 0 \"{mark}\" 0}}")?;
        }
        writeln!(out)?;
    }
    writeln!(out, "MAPS")?;
    for (start, end, module) in mappings(analysis) {
        let path = String::from_utf8_lossy(&module.path);
        writeln!(out, "{start:x}-{end:x} r-xp {:08x} 00:00 0 {:20}{}", 0, "", harmless(&path))?;
    }
    writeln!(out, "END")
}

/// The function that has code at the address: what was inlined has no place of its own in this format.
fn frame(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    node: &Node,
) -> io::Result<()> {
    let module = analysis.modules.get(node.module);
    let path = module.map(|module| quoted(&harmless(&String::from_utf8_lossy(&module.path))));
    let relative = node.lookup_pc().wrapping_sub(module.map_or(0, |module| module.bias));
    let function = match symbols.frames(&analysis.modules, node).last() {
        Some(frame) if frame.function().is_some() => quoted(&name(analysis, node, frame)),
        _ => String::new(),
    };
    write!(out, " {{\"{}\" {relative:x} \"{function}\" 0}}", path.unwrap_or_default())
}

/// A name in which nothing looks like its end.
fn quoted(text: &str) -> String {
    let mut out = String::new();
    for (at, part) in text.split('"').enumerate() {
        if at > 0 {
            let number =
                part.strip_prefix(' ').map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
            // A part that ends behind a number has another `"` behind it, or is the last.
            out.push(if number.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '}'])) {
                '\''
            } else {
                '"'
            });
        }
        out.push_str(part);
    }
    out
}

/// Where modules lay, by address. Where one took the place of another that was unloaded, the later one.
fn mappings(analysis: &Analysis) -> Vec<(u64, u64, &Module)> {
    let mut kept: std::collections::BTreeMap<u64, (u64, &Module)> = std::collections::BTreeMap::new();
    let mut modules: Vec<&Module> = analysis.modules.iter().collect();
    modules.reverse();
    for module in modules {
        let (start, end) = module.range;
        let is_free = kept.range(..end).next_back().is_none_or(|(_, &(last, _))| last <= start);
        if start < end && is_free {
            kept.insert(start, (end, module));
        }
    }
    kept.into_iter().map(|(start, (end, module))| (start, end, module)).collect()
}

/// How many blocks of each size each stack holds.
#[derive(Default)]
struct End {
    live: HashMap<(u64, u32), u64, FoldHash>,
    canonical: Vec<u32>,
}

impl End {
    fn key(&self, block: Block) -> (u64, u32) {
        (block.size, self.canonical.get(block.stack as usize).copied().unwrap_or(0))
    }
}

impl Watcher for End {
    fn added(&mut self, _: u64, block: Block, _: bool) {
        *self.live.entry(self.key(block)).or_default() += 1;
    }

    fn removed(&mut self, _: u64, block: Block, _: bool) {
        let key = self.key(block);
        if let Some(count) = self.live.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.live.remove(&key);
            }
        }
    }

    fn restored(&mut self, address: u64, block: Block, peak: bool) {
        self.added(address, block, peak);
    }
}

impl Player for End {
    fn moment(&mut self, _: u64, _: &Totals) {}
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn names_stay_what_they_are_and_end_where_they_end() {
        for name in ["operator\"\" _kb(unsigned long long)", "operator\"\"d", "a\"b", "/lib/\"x\".so", "\""] {
            assert_eq!(quoted(name), name);
        }
        for (name, written) in [
            ("f\" 0} {\"fake\" 12 \"g", "f' 0} {\"fake' 12 \"g"),
            ("/lib\" ff \"f", "/lib' ff \"f"),
            ("f\" 7", "f' 7"),
        ] {
            assert_eq!(quoted(name), written);
        }
    }
}
