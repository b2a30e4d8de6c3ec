//! Reports of a small trace, as a whole. `GRAPNEL_BLESS=1` writes what came out as what is expected.

use crate::common::{info, read};
use grapnel_analysis::Analysis;
use grapnel_analysis::report::text::TextOptions;
use grapnel_analysis::report::{json, text};
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_trace::Meter;
use grapnel_trace::event::{Event, Exit, Module, Source, node_flags};
use grapnel_trace::meter::Timed;
use grapnel_trace::writer::Writer;
use grapnel_trace::{Heap, HeapKind, Mapped, MappingEvent, Mark};

/// Everything that a report can show but symbols: those are of files, and the tests of symbols have them.
fn events() -> Vec<Event> {
    let module = |id, bias, path: &str| {
        Event::Module(Module { id, bias, range: (bias, bias + 0x9000), build_id: vec![], path: path.into() })
    };
    let node = |id, parent, pc, module, flags| Event::Node { id, parent, pc, module, flags };
    let alloc =
        |thread, stack, address, size| Event::Alloc { thread, stack, address, size, source: Source::Malloc };
    let mut events = vec![
        module(1, 0x5555_0000_0000, "/nonexistent/app\x1b[31m"),
        module(2, 0x7fff_0000_0000, "[vdso]"),
        Event::Thread { index: 0, tid: 4242, name: b"app".to_vec() },
        node(1, 0, 0x5555_0000_1040, 1, 0),
        node(2, 1, 0x5555_0000_1234, 1, 0),
        node(3, 2, 0x7fff_0000_0777, 2, node_flags::GUESS),
        node(4, 0, 0, 0, node_flags::TRUNCATED),
        node(5, 4, 0xdead_beef, 0, 0),
    ];
    // A stack of 40 frames.
    for id in 6..=45 {
        events.push(node(id, if id == 6 { 1 } else { id - 1 }, 0x5555_0000_2000 + u64::from(id), 1, 0));
    }
    events.extend([
        node(46, 0, 0, 0, node_flags::NO_CALLER),
        node(47, 46, 0xbad_cafe, 0, node_flags::GUESS),
        alloc(0, 47, 0x7000, 90),
        alloc(0, 2, 0x1000, 1000),
        Event::Time(1_500_000_000),
        alloc(0, 3, 0x2000, 2_000_000),
        Event::Free { thread: 0, address: 0x2000 },
        alloc(0, 5, 0x3000, 64),
        alloc(0, 45, 0x4000, 500),
        alloc(0, 45, 0x5000, 500),
        Event::ReallocBegin { thread: 0, address: 0x1000 },
        Event::ReallocEnd { thread: 0, stack: 2, address: 0x6000, size: 3000, old: 0x1000 },
        Event::Mapping(MappingEvent::Map {
            thread: 0,
            stack: 3,
            address: 0x1000,
            size: 9 << 20,
            mapped: Mapped::Anonymous,
        }),
        Event::Mapping(MappingEvent::Map {
            thread: 0,
            stack: 5,
            address: 0x5000,
            size: 4096,
            mapped: Mapped::File,
        }),
        Event::Mapping(MappingEvent::Unmap { thread: 0, address: 0x10_1000, size: 8 << 20 }),
        Event::Heap(Heap { id: 1, kind: HeapKind::Pool, name: b"nodes\x1b[31m".to_vec() }),
        Event::Heap(Heap { id: 2, kind: HeapKind::Pool, name: b"nodes\x1b[31m".to_vec() }),
        Event::Heap(Heap { id: 3, kind: HeapKind::Allocator, name: b"unused".to_vec() }),
        Event::InHeap(1),
        alloc(0, 2, 0x6000, 70),
        Event::InHeap(2),
        alloc(0, 3, 0x6000, 80),
        Event::HeapEnd(1),
        Event::Mark(Mark::Named(b"read\x1b[31m".to_vec())),
        Event::Mark(Mark::Paused),
        Event::Lost(2),
    ]);
    events
}

/// What the recording cost: 60 ns for each of a million blocks, 30 for as many frees.
fn meter() -> Meter {
    let timed = |ns: u64| Timed { events: 1_000_000, calls: 400, ns: 400 * ns, squares: 400 * ns * ns };
    Meter {
        given: timed(50),
        taken: timed(20),
        interrupted: 3,
        empty_ps: 10_000,
        setup_ns: 10_000_000,
        waited_ns: 5_000_000,
        program_cpu_ns: 500_000_000,
        drain_cpu_ns: 250_000_000,
        agent_bytes: 2 << 20,
        shared_bytes: 1 << 20,
        command_bytes: 12 << 20,
    }
}

fn analysis() -> Analysis {
    let mut writer = Writer::new(Vec::new(), &info(), 1).unwrap();
    events().iter().for_each(|event| writer.push(event).unwrap());
    // The later of two counts.
    writer.meter(&Meter::default(), 1).unwrap();
    writer.meter(&meter(), 65_000_000_000).unwrap();
    read(&writer.finish(Some(Exit::Signal(9)), 65_000_000_000, 2).unwrap())
}

fn compare(name: &str, found: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("GRAPNEL_BLESS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (number, (found, expected)) in (1..).zip(found.lines().zip(expected.lines())) {
        assert_eq!(found, expected, "{name}, line {number}");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{name}");
}

fn text(options: &TextOptions) -> String {
    let store = FileStore::new();
    let mut out = Vec::new();
    text::write(&mut out, &analysis(), &mut Symbols::new(&store, SearchPath::default()), options).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_text_report() {
    compare("report.txt", &text(&TextOptions::default()));
    let mut narrow = TextOptions::default();
    (narrow.width, narrow.top, narrow.frames) = (Some(40), 1, 4);
    compare("narrow.txt", &text(&narrow));
}

#[test]
fn the_json_report() {
    let store = FileStore::new();
    let mut out = Vec::new();
    json::write(&mut out, &analysis(), &mut Symbols::new(&store, SearchPath::default()), 0).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
    compare("report.json", &(serde_json::to_string_pretty(&value).unwrap() + "\n"));
    let mut two = Vec::new();
    json::write(&mut two, &analysis(), &mut Symbols::new(&store, SearchPath::default()), 2).unwrap();
    let two: serde_json::Value = serde_json::from_slice(&two).unwrap();
    assert_eq!(two["sites"].as_array().unwrap()[..], value["sites"].as_array().unwrap()[..2]);
    // The order of the fields is the documented one, too.
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with(r#"{"version":1,"process":{"pid":4242,"command":["./app","two words"],"exit":{"signal":9}},"totals":{"allocations":6,"frees":1,"#), "{text}");
}
