//! Prints every event of a trace, a line each: `cargo run -p grapnel-trace --features file --example dump TRACE`.

use grapnel_trace::reader::Reader;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: dump TRACE")?;
    let mut reader = Reader::new(BufReader::new(File::open(path)?))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    writeln!(out, "{:?}", reader.info())?;
    while let Some(event) = reader.next_event()? {
        writeln!(out, "{event:x?}")?;
    }
    writeln!(out, "{:?}", reader.end())?;
    Ok(())
}
