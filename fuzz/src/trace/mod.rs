//! What the fuzz targets and the tests do with files that people hand to `grapnel`: traces, other profilers' recordings, and
//! object files with debug information. A function for each, which panics if something is wrong.

mod exports;
mod files;
mod form;
mod reports;

pub use files::{heaptrack, object_file};
pub use form::{mended, unpacked};

use std::path::Path;

use grapnel_analysis::{
    Analysis, Ending, analyse,
    history::{Window, analyse_over_time},
    symbols::{FileStore, SearchPath, Symbols},
};
use grapnel_trace::reader::Reader;

/// Reads the bytes as a trace, as they are and with the form of its blocks put right, and has everything said of it that can
/// be said. Answers how many events were read.
///
/// # Panics
///
/// If two passes don't agree, figures don't add up, or what is written is not what its form wants.
pub fn trace(input: &[u8]) -> u64 {
    let mended = mended(input);
    let mut events = judged(&mended);
    if mended != input {
        events += judged(input);
    }
    events
}

/// As [`trace`], of bytes as they are.
///
/// # Panics
///
/// As [`trace`].
pub fn judged(trace: &[u8]) -> u64 {
    let reader = match Reader::new(trace) {
        Ok(reader) => reader,
        Err(error) => {
            is_sentence(&error.to_string());
            return 0;
        }
    };
    let analysis = analyse(reader);
    adds_up(&analysis);
    agrees(&analysis, trace);
    reports::all(&analysis, trace);
    exports::all(&analysis, trace);
    analysis.events
}

/// Where no file is found, whatever a trace names: nothing of this machine may be opened for it.
fn nowhere() -> SearchPath {
    SearchPath::of_sysroot(Path::new("/nonexistent").to_owned())
}

/// Gives symbols to something.
fn with_symbols<T>(of: impl FnOnce(&mut Symbols<'_>) -> T) -> T {
    let store = FileStore::new();
    of(&mut Symbols::new(&store, nowhere()))
}

/// Something for a terminal: nothing in it moves the cursor.
fn is_sentence(text: &str) {
    assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
}

fn is_text(bytes: &[u8]) -> &str {
    let text = str::from_utf8(bytes).expect("what is written is text");
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    text
}

fn is_json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).expect("what is written is JSON")
}

/// What all sites have together is what the process has.
fn adds_up(analysis: &Analysis) {
    if let Some(note) = analysis.ending.note() {
        assert!(!note.is_empty());
    }
    if analysis.sampling.is_some() {
        return;
    }
    let (totals, sites) = (&analysis.totals, &analysis.sites);
    let sum = |figure: fn(&grapnel_analysis::sites::Site) -> u64| {
        sites.iter().fold(0_u64, |sum, site| sum.wrapping_add(figure(site)))
    };
    assert_eq!(sum(|site| site.allocations), totals.allocations + totals.reallocations, "allocations");
    assert_eq!(sum(|site| site.live_bytes), totals.live_bytes, "live bytes");
    assert_eq!(sum(|site| site.live_allocations), totals.live_allocations, "live blocks");
    assert_eq!(sum(|site| site.peak_bytes), totals.peak_bytes, "bytes at the peak");
    assert_eq!(sum(|site| site.temporary_allocations), totals.temporary_allocations, "temporary allocations");
    assert_eq!(analysis.functions.iter().sum::<u64>(), totals.allocations + totals.reallocations);
}

/// The same trace, read by another pass, has the same figures.
fn agrees(analysis: &Analysis, trace: &[u8]) {
    let reader = Reader::new(trace).expect("it was read before");
    let (other, history) = analyse_over_time(reader, Window::ALL);
    assert_eq!((other.totals, other.events), (analysis.totals, analysis.events));
    assert_eq!(other.sites, analysis.sites);
    assert_eq!(matches!(other.ending, Ending::InOrder), matches!(analysis.ending, Ending::InOrder));
    if analysis.sampling.is_none() {
        let grown = history.all().fold(0_u64, |sum, bucket| {
            bucket.cells.iter().fold(sum, |sum, cell| sum.wrapping_add(cell.grown))
        });
        assert_eq!(grown, analysis.totals.live_bytes, "what grew over time");
    }
}
