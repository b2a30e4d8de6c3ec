//! How fast events are written: reads a trace, then writes its events once more, several times, into nothing.
//!
//! `cargo run --release -p grapnel-trace --features file --example encode_speed -- TRACE [LEVEL]`

use grapnel_trace::Event;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::reader::Reader;
use grapnel_trace::writer::Writer;
use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Write};
use std::time::Instant;

/// Counts what it is given.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which trace?")?;
    let level = arguments.next().map_or(Ok(1), |level| level.parse())?;
    let mut reader = Reader::new(BufReader::new(File::open(path)?))?;
    let mut runs: Vec<(Vec<HeapEvent>, Option<Event>)> = Vec::new();
    loop {
        let mut batch = Vec::new();
        let other = reader.next_batch(&mut batch, 4096)?;
        if batch.is_empty() && other.is_none() {
            break;
        }
        runs.push((batch, other));
    }
    let events: usize = runs.iter().map(|(batch, _)| batch.len()).sum();
    let mut best = f64::INFINITY;
    let mut bytes = 0;
    for _ in 0..20 {
        let start = Instant::now();
        let mut writer = Writer::new(Counted(0), reader.info(), level)?;
        for (batch, other) in &runs {
            for event in batch {
                writer.push_heap(event)?;
            }
            if let Some(event) = other {
                writer.push(event)?;
            }
        }
        bytes = writer.finish(None, 0, 0)?.0;
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!(
        "{events} events of the heap: {:.1} ns and {:.2} bytes each",
        best * 1e9 / events as f64,
        bytes as f64 / events as f64
    );
    Ok(())
}
