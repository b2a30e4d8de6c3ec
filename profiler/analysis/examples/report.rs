//! Reports on a trace as `grapnel report` does, in a program that is built in seconds: to be measured.

use grapnel_analysis::analyse_and_open;
use grapnel_analysis::report::text;
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_trace::reader::Reader;
use std::fs::File;
use std::io::BufReader;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("give a trace")?;
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, SearchPath::default());
    let reader = Reader::new(BufReader::with_capacity(1 << 18, File::open(path)?))?;
    let analysis = analyse_and_open(reader, &mut symbols);
    text::write(std::io::stdout().lock(), &analysis, &mut symbols, &text::TextOptions::default())?;
    Ok(())
}
