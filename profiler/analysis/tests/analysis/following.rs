//! A trace that is followed says at its end what an analysis of the whole says.

use crate::common::{Random, info};
use grapnel_analysis::analyse;
use grapnel_analysis::following::{Following, Step};
use grapnel_analysis::sites::Site;
use grapnel_trace::event::{Event, Exit, Source};
use grapnel_trace::growing::Growing;
use grapnel_trace::reader::Reader;
use grapnel_trace::writer::Writer;
use grapnel_trace::{Mark, Module};
use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};

const STACKS: u32 = 40;

/// A file of which so many bytes are written.
struct Written<'b> {
    bytes: &'b [u8],
    at: usize,
    len: &'b AtomicUsize,
}

impl Read for Written<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.len.load(Ordering::Relaxed) - self.at);
        out[..len].copy_from_slice(&self.bytes[self.at..][..len]);
        self.at += len;
        Ok(len)
    }
}

/// A library that is loaded twice, stacks in both, blocks, and a mark after each thousand of them.
fn trace() -> Vec<u8> {
    let mut random = Random(11);
    let mut writer = Writer::new(Vec::new(), &info(), 1).unwrap();
    // Each mark ends a block.
    let mut push = |event: &Event| {
        writer.push(event).unwrap();
        if matches!(event, Event::Mark(_)) {
            writer.flush().unwrap();
        }
    };
    for (id, bias) in [(1, 0x1000), (2, 0x9000)] {
        push(&Event::Module(Module { id, bias, path: b"/lib/twice.so".to_vec(), ..Module::default() }));
    }
    for id in 1..=STACKS {
        let module = 1 + id % 2;
        let pc = [0x1000, 0x9000][(id % 2) as usize] + u64::from(id / 2) * 16;
        push(&Event::Node { id, parent: 0, module, pc, flags: 0 });
    }
    let mut live = Vec::new();
    for number in 1..20_000_u64 {
        let stack = 1 + random.below(u64::from(STACKS)) as u32;
        let (address, size) = (number << 8, random.below(5000));
        push(&Event::Alloc { thread: 0, stack, address, size, source: Source::Malloc });
        live.push(address);
        if random.below(3) > 0 {
            let at = random.below(live.len() as u64) as usize;
            push(&Event::Free { thread: 0, address: live.swap_remove(at) });
        }
        if number % 1000 == 0 {
            push(&Event::Time(number * 1000));
            push(&Event::Mark(Mark::Named(number.to_string().into_bytes())));
        }
    }
    writer.finish(Some(Exit::Code(0)), 30_000_000, 0).unwrap()
}

#[test]
fn what_grew_says_in_the_end_what_the_whole_says() {
    let bytes = trace();
    let whole = analyse(Reader::new(&bytes[..]).unwrap());
    for step in [1000, 4097, bytes.len()] {
        let len = AtomicUsize::new(400);
        let input = Written { bytes: &bytes, at: 0, len: &len };
        let mut following = Following::new(Reader::new(Growing::new(input)).unwrap());
        let (mut waits, mut marks, mut given_out) = (0, 0, 0);
        loop {
            match following.step() {
                Step::Read => {}
                Step::CaughtUp => {
                    waits += 1;
                    len.store((len.load(Ordering::Relaxed) + step).min(bytes.len()), Ordering::Relaxed);
                }
                Step::Over(ending) => {
                    assert!(ending.note().is_none());
                    break;
                }
            }
            // Nothing is lost sight of, and a step ends at a mark.
            let (totals, _) = following.totals();
            assert!(totals.allocations >= given_out);
            given_out = totals.allocations;
            if following.marks().len() > marks {
                marks += 1;
                assert_eq!((following.marks().len(), given_out), (marks, marks as u64 * 1000));
            }
        }
        assert!(waits >= (bytes.len() - 400) / step, "{waits}");
        let (totals, sampling) = following.totals();
        assert_eq!((totals, sampling), (whole.totals, None));
        assert_eq!((following.end().unwrap().exit, following.threads()), (whole.exit, whole.threads));
        assert_eq!(following.marks(), whole.marks);
        assert_eq!(following.modules().iter().count(), 2);
        assert!(std::sync::Arc::ptr_eq(&following.modules(), &following.modules()));
        // Of each pair of equal stacks one is the first.
        let first = following.first_equal().unwrap();
        let mut sums = vec![Site::default(); first.len()];
        for site in following.sites() {
            let sum = &mut sums[first[site.stack as usize] as usize];
            sum.live_bytes += site.live_bytes;
            sum.allocations += site.allocations;
        }
        sums.retain(|site| site.allocations > 0);
        assert_eq!(sums.len(), whole.sites.len());
        let live = |sites: &[Site]| sites.iter().map(|site| site.live_bytes).sum::<u64>();
        assert_eq!(live(&sums), live(&whole.sites));
        let analysis = following.analysis();
        assert_eq!((&analysis.sites, analysis.totals), (&whole.sites, whole.totals));
        assert_eq!(
            (analysis.exit, analysis.events, analysis.functions),
            (whole.exit, whole.events, whole.functions)
        );
        // There is no more, however often it is asked.
        assert!(matches!(following.step(), Step::CaughtUp));
    }
}

#[test]
fn damage_ends_it_and_says_so() {
    let mut bytes = trace();
    let at = bytes.len() / 2;
    bytes[at] ^= 0xff;
    let len = AtomicUsize::new(bytes.len());
    let mut following =
        Following::new(Reader::new(Growing::new(Written { bytes: &bytes, at: 0, len: &len })).unwrap());
    let ending = loop {
        match following.step() {
            Step::Read => {}
            Step::CaughtUp => panic!("the damage was not seen"),
            Step::Over(ending) => break ending,
        }
    };
    assert!(ending.is_damage());
    assert!(following.totals().0.allocations > 0);
}
