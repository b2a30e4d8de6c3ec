//! Other files than traces: heaptrack's, and objects with debug information.

use std::{
    cell::RefCell,
    fs::{self, File},
    path::Path,
    time::SystemTime,
};

use grapnel_analysis::{
    Ending, analyse,
    import::heaptrack::import,
    symbols::{FileStore, SearchPath, Symbols},
};
use grapnel_trace::{Event, Module, ProcessInfo, Source, reader::Reader, writer::Writer};
use tempfile::TempDir;

use super::is_sentence;

/// Imports the bytes as a file of heaptrack's; answers how many blocks were in it.
///
/// # Panics
///
/// If what is imported is no good trace, or has other figures than those that were told.
pub fn heaptrack(input: &[u8]) -> u64 {
    let mut out = Vec::new();
    let imported = match import(input, &mut out) {
        Ok(imported) => imported,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return 0;
        }
    };
    let analysis = analyse(Reader::new(&*out).expect("what was written can be read"));
    // One that broke off has no end either.
    let is_whole = matches!(analysis.ending, Ending::InOrder);
    assert!(is_whole == imported.damage.is_none() && !analysis.ending.is_damage(), "{:?}", analysis.ending);
    assert_eq!((analysis.totals.allocations, analysis.totals.frees), (imported.allocations, imported.frees));
    imported.allocations
}

thread_local! {
    /// Where object files are put.
    static DIR: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// Addresses that are looked up: from `FIRST` on, each so far behind the one before.
const FIRST: u64 = 0x1000;
const STEP: u64 = 9;
const ADDRESSES: u32 = 64;
/// What is longer is no case for a fuzzer.
const LONGEST: usize = 1 << 20;

/// Takes the bytes for an object file and looks addresses up in it; answers how many have a name.
///
/// # Panics
///
/// If a sentence about it isn't one.
pub fn object_file(input: &[u8]) -> u64 {
    if input.len() > LONGEST {
        return 0;
    }
    DIR.with_borrow_mut(|dir| {
        let dir = dir.get_or_insert_with(|| TempDir::new().expect("a directory"));
        look_up(dir.path(), input)
    })
}

fn look_up(dir: &Path, input: &[u8]) -> u64 {
    let path = dir.join("object");
    fs::write(&path, input).expect("room for a file");
    // What has no build id must be older than the recording.
    let file = File::options().write(true).open(&path).expect("it was just written");
    file.set_modified(SystemTime::UNIX_EPOCH).expect("the file is ours");
    let trace = trace_of(b"/object").expect("memory");
    let analysis = analyse(Reader::new(&*trace).expect("it was just written"));
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, SearchPath::of_sysroot(dir.to_owned()));
    let mut named = 0;
    for node in analysis.stacks.iter() {
        let frames = symbols.frames(&analysis.modules, &node);
        assert!(!frames.is_empty() && !frames[frames.len() - 1].inlined());
        named += u64::from(frames.iter().any(|frame| frame.function().is_some()));
    }
    for note in symbols.notes() {
        is_sentence(&grapnel_analysis::report::words::harmless(&note));
    }
    if let Some(module) = analysis.modules.get(1) {
        for address in 0..64 {
            let _ = symbols.variable(module, FIRST + (address << 8));
        }
    }
    named
}

/// A trace of a process that allocated in this module, at each of the addresses.
fn trace_of(path: &[u8]) -> Result<Vec<u8>, grapnel_trace::Error> {
    let info = ProcessInfo { started_unix_ns: 1_700_000_000_000_000_000, ..ProcessInfo::default() };
    let mut writer = Writer::new(Vec::new(), &info, 1)?;
    let range = (0, u64::from(u32::MAX));
    writer.push(&Event::Module(Module { id: 1, range, path: path.to_vec(), ..Module::default() }))?;
    for id in 1..=ADDRESSES {
        let pc = FIRST + STEP * u64::from(id);
        writer.push(&Event::Node { id, parent: 0, pc, module: 1, flags: 0 })?;
        let address = u64::from(id) << 4;
        writer.push(&Event::Alloc { thread: 0, stack: id, address, size: 1, source: Source::Malloc })?;
    }
    writer.finish(None, 0, 0)
}
