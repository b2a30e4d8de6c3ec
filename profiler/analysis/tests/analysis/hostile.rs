//! Traces that no recording writes: cut, flipped, and well-formed nonsense. None may panic.

use crate::common::{Random, cases, info, write};
use grapnel_analysis::history::{Window, analyse_over_time};
use grapnel_analysis::leaks::{self, Kind};
use grapnel_analysis::report::{json, text};
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_analysis::{Analysis, analyse, page};
use grapnel_trace::block::BLOCK_HEADER;
use grapnel_trace::event::{Event, Module, Source};
use grapnel_trace::leaks::{Holder, Path, Root, RootKind};
use grapnel_trace::reader::Reader;
use grapnel_trace::writer::Writer;
use grapnel_trace::{Heap, HeapKind, LeakScan, Mapped, MappingEvent, Mark};
use std::sync::OnceLock;

/// Reports on the bytes of a trace, if they begin like one.
fn report_on(trace: &[u8]) -> Option<Analysis> {
    let analysis = analyse(Reader::new(trace).ok()?);
    report(&analysis);
    show(trace);
    ask(trace);
    Some(analysis)
}

/// Asks all that can be asked. Groups that share no block must add up to the whole.
fn ask(trace: &[u8]) {
    use grapnel_analysis::query::{By, Query, gather};
    let shared = [By::Function, By::File, By::Module];
    let apart = [By::All, By::Thread, By::Size, By::Lifetime, By::Time, By::Source, By::Pattern];
    for by in shared.into_iter().chain(apart) {
        for window in [0..=u64::MAX, 20..=200] {
            let query = Query { by, window, ..Query::default() };
            let Ok((analysis, gathered)) = gather(Reader::new(trace).unwrap(), &query) else { continue };
            let store = FileStore::new();
            let answer = gathered.answer(&analysis, &mut Symbols::new(&store, SearchPath::default()));
            let sum = answer.rows.iter().map(|row| row.figures.allocations).sum::<u64>();
            assert!(shared.contains(&by) || sum == answer.whole.allocations, "{by:?}");
        }
    }
}

/// Makes a page of a trace, whole and of a part of it. What is in the trace must not become markup.
fn show(trace: &[u8]) {
    for window in [Window::ALL, Window { from: 20, to: 200 }] {
        let (analysis, history) = analyse_over_time(Reader::new(trace).unwrap(), window);
        let store = FileStore::new();
        let mut symbols = Symbols::new(&store, SearchPath::default());
        let mut out = Vec::new();
        page::write(&mut out, &analysis, &history, &mut symbols).unwrap();
        let text = String::from_utf8(out).unwrap();
        let (_, rest) = text.split_once("class=\"recording\">").unwrap();
        let (data, rest) = rest.split_once("</script>").unwrap();
        assert!(data.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)));
        // All else is always the same.
        assert_eq!(rest.matches('<').count(), *EMPTY_REST.get_or_init(|| rest.matches('<').count()));
    }
}

static EMPTY_REST: OnceLock<usize> = OnceLock::new();

/// Reports in both forms, which must succeed whatever the trace says; the JSON must be JSON.
fn report(analysis: &Analysis) {
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, SearchPath::default());
    let mut out = Vec::new();
    json::write(&mut out, analysis, &mut symbols, 0).unwrap();
    serde_json::from_slice::<serde_json::Value>(&out).unwrap();
    out.clear();
    text::write(&mut out, analysis, &mut symbols, &text::TextOptions::default()).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
}

/// Anything at all, with a leaning towards what is nearly right.
fn event(random: &mut Random, nodes: &mut u32) -> Event {
    let wild = |random: &mut Random| match random.below(4) {
        0 => random.next(),
        1 => u64::MAX - random.below(3),
        _ => random.below(40),
    };
    let number = |random: &mut Random| random.below(12) as u32;
    let bytes = |random: &mut Random| (0..random.below(12)).map(|_| random.next() as u8).collect::<Vec<u8>>();
    let (thread, address, size) = (number(random), wild(random), wild(random));
    let stack = if random.below(600) > 0 { random.below(u64::from(*nodes) + 1) as u32 } else { 100_000 };
    match random.below(19) {
        18 => Event::Mark(Mark::Named(bytes(random))),
        11 => Event::InHeap(number(random)),
        12 => Event::HeapEnd(number(random)),
        13 => Event::Heap(Heap { id: 1 + number(random), kind: HeapKind::Pool, name: bytes(random) }),
        14 => Event::Mapping(MappingEvent::Map { thread, stack, address, size, mapped: Mapped::Segment }),
        15 => Event::Mapping(MappingEvent::Unmap { thread, address, size }),
        16 => Event::Mapping(MappingEvent::Remap { thread, stack, address, size, old: wild(random) }),
        17 => Event::Mapping(MappingEvent::Failed { thread }),
        0 => {
            *nodes += 1;
            let parent = random.below(u64::from(*nodes)) as u32;
            Event::Node {
                id: *nodes,
                parent,
                pc: wild(random),
                module: number(random),
                flags: random.next() as u8,
            }
        }
        1 => Event::Module(Module {
            id: number(random),
            bias: wild(random),
            range: (wild(random), wild(random)),
            build_id: bytes(random),
            path: [&b"/usr/bin/"[..], &bytes(random)].concat(),
        }),
        2 => Event::Free { thread, address },
        3 => Event::ReallocBegin { thread, address },
        4 => Event::ReallocEnd { thread, stack, address, size, old: wild(random) },
        5 => Event::ReallocFailed { thread, address },
        6 => Event::Lost(wild(random)),
        7 => Event::Unload(number(random)),
        8 => Event::Time(random.below(1 << 40)),
        _ => Event::Alloc { thread, stack, address, size, source: Source::Malloc },
    }
}

#[test]
fn nonsense_in_good_form_is_reported() {
    let (mut broken, mut count) = (0, 0);
    for seed in cases(150) {
        count += 1;
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut nodes = 0;
        let mut events: Vec<Event> = (0..400).map(|_| event(&mut random, &mut nodes)).collect();
        events.sort_by_key(|event| !matches!(event, Event::Node { .. }));
        let analysis = report_on(&write(&events, random.next())).unwrap();
        broken += u32::from(analysis.ending.is_damage());
    }
    // Some go wrong at an unknown stack; most must get to their end to be of use here.
    assert!((1..count * 2 / 3).contains(&broken), "{broken} of {count}");
}

/// A look for leaks as nobody took it: any roots, any paths, stacks that the trace may not have.
fn look(random: &mut Random, nodes: u32) -> LeakScan {
    let wild = |random: &mut Random| if random.below(3) == 0 { random.next() } else { random.below(40) };
    let bytes = |random: &mut Random| (0..random.below(12)).map(|_| random.next() as u8).collect::<Vec<u8>>();
    let root = |random: &mut Random| Root {
        kind: RootKind::ALL[random.below(9) as usize],
        thread: random.below(3) as u32,
        module: random.below(12) as u32,
        address: wild(random),
        name: [b"</script>\x1b[2J", &*bytes(random)].concat(),
    };
    let roots: Vec<Root> = (0..1 + random.below(5)).map(|_| root(random)).collect();
    let path = |random: &mut Random, before: u64| Path {
        holder: match random.below(2) {
            1 if before > 0 => Holder::Path(random.below(before) as u32),
            _ => Holder::Root(random.below(roots.len() as u64) as u32),
        },
        stack: if random.below(400) > 0 { random.below(u64::from(nodes) + 1) as u32 } else { u32::MAX },
        blocks: wild(random),
        bytes: wild(random),
        inner_blocks: wild(random),
        inner_bytes: wild(random),
        offset: wild(random),
    };
    let paths = (0..random.below(60)).map(|before| path(random, before)).collect();
    let (time_ns, tags, root_bytes) = (wild(random), wild(random), wild(random));
    let (stopped_ns, doubts) = (wild(random), random.next() as u32);
    LeakScan { time_ns, tags, root_bytes, stopped_ns, doubts, roots, paths, ..LeakScan::default() }
}

#[test]
fn a_look_for_leaks_that_nobody_took_is_reported() {
    let (mut count, mut known) = (0, 0);
    for seed in cases(150) {
        count += 1;
        let mut random = Random(seed.wrapping_mul(0xd134_2543_de82_ef95));
        let mut writer = Writer::new(Vec::new(), &info(), 1).unwrap();
        let mut nodes = 0;
        for _ in 0..40 {
            let event = event(&mut random, &mut nodes);
            if matches!(event, Event::Node { .. } | Event::Module(_)) {
                writer.push(&event).unwrap();
            }
        }
        writer.leaks(&look(&mut random, nodes)).unwrap();
        let analysis = report_on(&writer.finish(None, 0, 0).unwrap()).unwrap();
        let Some(found) = &analysis.leaks else { continue };
        known += 1;
        let store = FileStore::new();
        let mut symbols = Symbols::new(&store, SearchPath::default());
        let mut out = Vec::new();
        leaks::json::write(&mut out, &analysis, found, &mut symbols, &Kind::ALL, 0).unwrap();
        serde_json::from_slice::<serde_json::Value>(&out).unwrap();
        out.clear();
        let options = text::TextOptions::default();
        leaks::text::write(&mut out, &analysis, found, &mut symbols, &options, &Kind::ALL).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
    // Some name a stack that there isn't.
    assert!((count / 2..count).contains(&known), "{known} of {count}");
}

#[test]
fn a_trace_cut_anywhere_is_reported_up_to_there() {
    let mut random = Random(7);
    let mut nodes = 0;
    let events: Vec<Event> = (0..60).map(|_| event(&mut random, &mut nodes)).collect();
    let whole = write(&events, 0);
    let mut reported = 0;
    for len in 0..whole.len() {
        if let Some(analysis) = report_on(&whole[..len]) {
            assert!(analysis.exit.is_none());
            assert!(analysis.ending.note().is_some());
            reported += 1;
        }
    }
    assert!(reported > BLOCK_HEADER);
}

#[test]
fn flipped_bits_give_an_error_or_a_report() {
    let mut random = Random(11);
    let mut nodes = 0;
    let events: Vec<Event> = (0..200).map(|_| event(&mut random, &mut nodes)).collect();
    let whole = write(&events, 0);
    for _ in 0..3000 {
        let mut bad = whole.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bad.len() as u64) as usize;
            bad[at] ^= 1 << random.below(8);
        }
        if let Ok(reader) = Reader::new(&*bad) {
            // A checksum guards each block, so that this seldom gets far: the other tests do.
            report(&analyse(reader));
        }
    }
}

#[test]
fn a_command_line_cannot_drive_the_terminal() {
    let mut evil = info();
    evil.command = vec![b"\x1b]0;gotcha\x07".to_vec(), b"\xff\xfe\r\n</script><img>".to_vec()];
    evil.recorder = b"\x1b[2J".to_vec();
    let writer = Writer::new(Vec::new(), &evil, 1).unwrap();
    assert!(report_on(&writer.finish(None, 0, 0).unwrap()).is_some());
}
