//! Times the analysis of a synthetic trace:
//! `cargo run --release -p grapnel-analysis --example analyse_speed [EVENTS [LIVE_BLOCKS]]`.

use grapnel_analysis::analyse;
use grapnel_trace::event::{Event, Module, ProcessInfo, Source};
use grapnel_trace::reader::Reader;
use grapnel_trace::writer::Writer;
use std::time::Instant;

const STACKS: u32 = 20_000;
const THREADS: u64 = 8;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (events, blocks) = (number(10_000_000), number(500_000));
    let trace = generate(events, blocks);
    println!("{events} events, {:.2} bytes each", trace.len() as f64 / events as f64);

    let start = Instant::now();
    let mut reader = Reader::new(&*trace).expect("what was just written");
    while reader.next_event().expect("what was just written").is_some() {}
    per_event("reading alone", start, events);

    let start = Instant::now();
    let analysis = analyse(Reader::new(&*trace).expect("what was just written"));
    per_event("analysis", start, events);
    let totals = analysis.totals;
    println!(
        "{} sites, {} blocks live, peak {} bytes, {} temporary",
        analysis.sites.len(),
        totals.live_allocations,
        totals.peak_bytes,
        totals.temporary_allocations
    );
}

fn per_event(what: &str, start: Instant, events: u64) {
    let elapsed = start.elapsed();
    println!("{what}: {elapsed:.2?}, {:.1} ns per event", elapsed.as_nanos() as f64 / events as f64);
}

/// Allocations, frees and some reallocs over a table of blocks.
fn generate(events: u64, blocks: u64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &ProcessInfo::default(), 1).expect("memory");
    let mut push = |event: &Event| writer.push(event).expect("memory");
    push(&Event::Module(Module { id: 1, path: b"/usr/bin/app".to_vec(), ..Module::default() }));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % n
    };
    for id in 1..=STACKS {
        let parent = if id < 50 { id - 1 } else { random(u64::from(id)) as u32 };
        push(&Event::Node { id, parent, pc: 0x5555_0000_0000 + random(1 << 20), module: 1, flags: 0 });
    }
    let mut live = vec![false; blocks as usize];
    let mut thread = 0;
    for done in 0..events {
        if done % 50 == 0 {
            thread = random(THREADS) as u32;
        }
        // Nine of ten events concern what is recent: a window of blocks that moves on.
        let recent = random(10) < 9;
        let slot = if recent { (done / 8 + random(4096)) % blocks } else { random(blocks) } as usize;
        let address = 0x7f00_0000_0000 + 96 * slot as u64;
        let size = 8 + random(4) * random(200);
        let stack = 1 + if recent { random(500) } else { random(u64::from(STACKS)) } as u32;
        let realloc = live[slot] && random(8) == 0;
        if realloc {
            push(&Event::ReallocBegin { thread, address });
        }
        push(&match live[slot] {
            false => Event::Alloc { thread, stack, address, size, source: Source::Malloc },
            true if realloc => Event::ReallocEnd { thread, stack, address, size, old: address },
            true => Event::Free { thread, address },
        });
        live[slot] = realloc || !live[slot];
    }
    writer.finish(None, 1_000_000_000, 0).expect("memory")
}
