//! Looks up addresses of an object file, as `addr2line -i -f -C -e FILE` does, to compare and to measure.
//!
//! `look_up FILE [DEBUG_DIR] < addresses`: an address in hex on each line. For each, a line for each frame: function, tab,
//! `file:line`, the innermost first, and `=` behind the last. Notes go to standard error.

use grapnel_analysis::analyse;
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_trace::event::{Event, Module, ProcessInfo, node_flags};
use grapnel_trace::reader::Reader;
use grapnel_trace::writer::Writer;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStringExt;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let path = std::fs::canonicalize(args.next().ok_or("give an object file")?)?.into_os_string().into_vec();
    let mut search = SearchPath::default();
    search.debug_dirs.extend(args.map(Into::into));
    let mut trace = Writer::new(Vec::new(), &ProcessInfo::default(), 1)?;
    trace.push(&Event::Module(Module { id: 1, range: (0, u64::MAX), path, ..Module::default() }))?;
    for (id, line) in (1..).zip(std::io::stdin().lines()) {
        let pc = u64::from_str_radix(line?.trim().trim_start_matches("0x"), 16)?;
        trace.push(&Event::Node { id, parent: 0, pc, module: 1, flags: node_flags::EXACT })?;
    }
    let analysis = analyse(Reader::new(&trace.finish(None, u64::MAX / 2, 0)?[..])?);
    let start = std::time::Instant::now();
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, search);
    let mut out = BufWriter::new(std::io::stdout().lock());
    for id in 1..=analysis.stacks.len() as u32 {
        let Some(node) = analysis.stacks.node(id) else { continue };
        for frame in symbols.frames(&analysis.modules, &node) {
            let (function, file) = (frame.function().unwrap_or("??"), frame.file().unwrap_or("??"));
            writeln!(out, "{function}\t{file}:{}", frame.line().unwrap_or(0))?;
        }
        writeln!(out, "=")?;
    }
    out.flush()?;
    eprintln!("{} addresses in {:.3} s", analysis.stacks.len(), start.elapsed().as_secs_f64());
    symbols.notes().iter().for_each(|note| eprintln!("note: {note}"));
    Ok(())
}
