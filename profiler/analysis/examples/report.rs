//! Reports on a trace as `grapnel report` does, in a program that is built in seconds: to be measured.
//!
//! `report TRACE [PAGE]`: the text to standard output, or the page to a file.

use grapnel_analysis::history::{Window, analyse_over_time};
use grapnel_analysis::report::text;
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_analysis::{analyse_and_open, page};
use grapnel_trace::reader::Reader;
use std::fs::File;
use std::io::{BufReader, BufWriter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().ok_or("give a trace")?;
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, SearchPath::default());
    let reader = Reader::new(BufReader::with_capacity(1 << 18, File::open(path)?))?;
    if let Some(page) = arguments.next() {
        let (analysis, history) = analyse_over_time(reader, Window::ALL);
        page::write(&mut BufWriter::new(File::create(page)?), &analysis, &history, &mut symbols)?;
        return Ok(());
    }
    let analysis = analyse_and_open(reader, &mut symbols);
    text::write(std::io::stdout().lock(), &analysis, &mut symbols, &text::TextOptions::default())?;
    Ok(())
}
