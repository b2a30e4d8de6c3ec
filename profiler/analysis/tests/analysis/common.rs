//! Traces made for tests.

use grapnel_analysis::{Analysis, analyse};
use grapnel_trace::event::{Event, Exit, ProcessInfo};
use grapnel_trace::reader::Reader;
use grapnel_trace::writer::Writer;
use std::time::{Duration, Instant};

/// Marsaglia's xorshift64: the same sequence everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

/// The numbers of a test's cases: so many, or as many as there is time for with GRAPNEL_HOSTILE_SECONDS.
pub(crate) fn cases(count: u64) -> impl Iterator<Item = u64> {
    let seconds = std::env::var("GRAPNEL_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    (1..).take_while(move |&number| end.map_or(number <= count, |end| Instant::now() < end))
}

pub(crate) fn info() -> ProcessInfo {
    ProcessInfo {
        pid: 4242,
        ppid: 1,
        command: vec![b"./app".to_vec(), b"two words".to_vec()],
        executable: b"/opt/app/bin/app".to_vec(),
        started_unix_ns: 1_700_000_000_000_000_000,
        machine: b"x86_64".to_vec(),
        recorder: b"0.1.0".to_vec(),
    }
}

pub(crate) fn write(events: &[Event], lost: u64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &info(), 1).unwrap();
    events.iter().for_each(|event| writer.push(event).unwrap());
    writer.finish(Some(Exit::Code(3)), 2_500_000_000, lost).unwrap()
}

pub(crate) fn read(bytes: &[u8]) -> Analysis {
    analyse(Reader::new(bytes).unwrap())
}
