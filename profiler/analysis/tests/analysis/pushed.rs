//! Profiles that are pushed: bounded, and what one tells isn't told by the next.

use crate::common::{read, write};
use flate2::read::GzDecoder;
use grapnel_analysis::Analysis;
use grapnel_analysis::export::pushed::{Known, LARGEST, MOST, Pushed, Resource};
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_trace::Event;
use grapnel_trace::event::Source;
use prost::Message;
use std::io::Read;

/// As much of pprof's profile as is looked at here, by its definition.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

/// `stacks` stacks of `depth` frames that are nobody else's; each has a block of its number's bytes.
fn analysis(stacks: u32, depth: u32) -> Analysis {
    let mut events = Vec::new();
    for stack in 0..stacks {
        for frame in 1..=depth {
            let id = stack * depth + frame;
            let (parent, pc) = (if frame == 1 { 0 } else { id - 1 }, u64::from(id) << 20);
            events.push(Event::Node { id, parent, module: 0, pc, flags: 0 });
        }
        let (address, size) = (u64::from(stack + 1) << 4, u64::from(stack + 1));
        events.push(Event::Alloc {
            thread: 0,
            stack: (stack + 1) * depth,
            address,
            size,
            source: Source::Malloc,
        });
    }
    let analysis = read(&write(&events, 0));
    assert_eq!(analysis.sites.len(), stacks as usize);
    analysis
}

fn pprof(pushed: &Pushed<'_>) -> (Profile, usize) {
    let store = FileStore::new();
    let compressed = pushed.pprof(&mut Symbols::new(&store, SearchPath::default()));
    let mut bytes = Vec::new();
    GzDecoder::new(&compressed[..]).read_to_end(&mut bytes).unwrap();
    (Profile::decode(&bytes[..]).unwrap(), bytes.len())
}

fn sums(profile: &Profile) -> [i64; 4] {
    std::array::from_fn(|at| profile.sample.iter().map(|sample| sample.value[at]).sum())
}

#[test]
fn the_smallest_are_added_up() {
    let stacks = MOST as u32 + 1000;
    let bytes = i64::from(stacks) * i64::from(stacks + 1) / 2;
    let analysis = analysis(stacks, 1);
    let (profile, _) = pprof(&Pushed::new(&analysis, 1_800_000_000_000_000_000, None));
    assert_eq!(profile.sample.len(), MOST + 1);
    assert_eq!(sums(&profile), [stacks.into(), bytes, stacks.into(), bytes]);
    assert_eq!(profile.sample.last().unwrap().value, [1000, 500_500, 1000, 500_500]);
    assert!(profile.strings.iter().any(|text| text == "(smaller sites)"));
    assert_eq!(profile.time_nanos, 1_800_000_000_000_000_000);
}

#[test]
fn what_would_be_too_long_is_made_shorter() {
    let (stacks, depth) = (2000, 200);
    let analysis = analysis(stacks, depth);
    let pushed = Pushed::new(&analysis, 1, None);
    let (profile, len) = pprof(&pushed);
    assert!((LARGEST / 8..=LARGEST).contains(&len), "{len}");
    assert!((10..stacks as usize).contains(&profile.sample.len()), "{}", profile.sample.len());
    assert_eq!(sums(&profile)[3], 2_001_000);
    let store = FileStore::new();
    let resource = Resource { id: 7, ..Resource::default() };
    let request = pushed.otlp(&mut Symbols::new(&store, SearchPath::default()), &resource);
    assert!((LARGEST / 8..=LARGEST).contains(&request.len()), "{}", request.len());
}

#[test]
fn what_is_known_is_not_told_again() {
    let (before, now) = (analysis(10, 2), analysis(12, 2));
    let known: Known = Pushed::new(&before, 5, None).known();
    let pushed = Pushed::new(&now, 9, Some(&known));
    assert_eq!(sums(&pprof(&pushed).0), [2, 11 + 12, 12, 78]);
    // All is live that was allocated: there is something to tell until it is freed.
    let known = pushed.known();
    let pushed = Pushed::new(&now, 10, Some(&known));
    assert!(!pushed.is_empty());
    assert_eq!(sums(&pprof(&pushed).0), [0, 0, 12, 78]);
    assert!(Pushed::new(&analysis(0, 1), 10, None).is_empty());
}
