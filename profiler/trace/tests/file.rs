//! Trace files, whole and damaged.
#![cfg(feature = "file")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use grapnel_trace::reader::Reader;
use grapnel_trace::writer::Writer;
use grapnel_trace::{Error, Event, Exit, Meter, ProcessInfo, Source};

fn info() -> ProcessInfo {
    ProcessInfo {
        pid: 7,
        ppid: 6,
        command: vec![b"prog".to_vec(), b"\xff\0odd".to_vec()],
        executable: b"/bin/prog".to_vec(),
        started_unix_ns: 1,
        machine: b"x86_64".to_vec(),
        recorder: b"0.1".to_vec(),
    }
}

fn events(n: u64) -> Vec<Event> {
    let mut events = Vec::new();
    for i in 1..=n {
        let address = 0x5555_0000_0000 + i * 0x1234_5670;
        if i % 1000 == 0 {
            events.push(Event::Time(i * 10_000));
        }
        let thread = (i % 3) as u32;
        events.push(Event::Alloc { thread, stack: i as u32, address, size: i, source: Source::Malloc });
        events.push(Event::Free { thread, address });
    }
    events
}

fn write(events: &[Event]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &info(), 1).unwrap();
    for event in events {
        writer.push(event).unwrap();
    }
    writer.finish(Some(Exit::Signal(9)), 77, 3).unwrap()
}

fn read(bytes: &[u8]) -> Result<(Vec<Event>, Reader<&[u8]>), Error> {
    let mut reader = Reader::new(bytes)?;
    let mut events = Vec::new();
    while let Some(event) = reader.next_event()? {
        events.push(event);
    }
    Ok((events, reader))
}

fn without_time(events: Vec<Event>) -> Vec<Event> {
    events.into_iter().filter(|event| !matches!(event, Event::Time(_))).collect()
}

#[test]
fn the_last_meter_counts() {
    let events = events(100);
    let meter = |drain_cpu_ns| Meter { drain_cpu_ns, agent_bytes: u64::MAX, ..Meter::default() };
    let mut writer = Writer::new(Vec::new(), &info(), 1).unwrap();
    events.iter().for_each(|event| writer.push(event).unwrap());
    writer.meter(&meter(1), 5).unwrap();
    writer.flush().unwrap();
    let cut = writer.written() as usize;
    writer.meter(&meter(2), 6).unwrap();
    let file = writer.finish(None, 7, 0).unwrap();
    let (back, reader) = read(&file).unwrap();
    assert_eq!((without_time(back), reader.meter()), (without_time(events), Some(meter(2))));
    let (_, reader) = read(&file[..cut]).unwrap();
    assert_eq!(reader.meter(), Some(meter(1)));
    assert_eq!(read(&write(&[])).unwrap().1.meter(), None);
}

#[test]
fn a_file_of_several_blocks_comes_back() {
    let written = events(200_000);
    let file = write(&written);
    let (back, reader) = read(&file).unwrap();
    assert_eq!(without_time(back), without_time(written));
    assert_eq!(reader.info(), &info());
    assert_eq!(reader.time(), 2_000_000_000);
    let end = reader.end().unwrap();
    assert_eq!((end.exit, end.duration_ns, end.lost), (Some(Exit::Signal(9)), 77, 3));
}

#[test]
fn in_haste_the_same_events_are_written_in_more_bytes() {
    const EVENTS: u64 = 300_000;
    const TO_A_BLOCK: u64 = 5_000;
    let is_noise = |n: u64| n / TO_A_BLOCK % 5 == 4;
    let mut rng = fastrand::Rng::with_seed(1);
    let written: Vec<Event> = (0..EVENTS)
        .map(|n| {
            // In each fifth block there is noise. In the others two sizes take turns, mostly: codes don't see that.
            let noise = is_noise(n);
            let usual = if rng.u8(..) < 20 { rng.u64(..4) } else { 8 * (n % 2) };
            let (address, size) = if noise { (rng.u64(..), rng.u64(..)) } else { (n * 0x20, usual) };
            let stack = if noise { rng.u32(..) } else { 1 };
            Event::Alloc { thread: 0, stack, address, size, source: Source::Malloc }
        })
        .collect();
    let [calm, haste] = [false, true].map(|haste| {
        let mut writer = Writer::new(Vec::new(), &info(), 1).unwrap();
        writer.hurry(haste);
        for (n, event) in (1..).zip(&written) {
            writer.push(event).unwrap();
            // Of noise now and then a single event: such a block is stored as it is.
            if n % TO_A_BLOCK == 0 || is_noise(n) && n % 100 < 2 {
                writer.flush().unwrap();
            }
        }
        let file = writer.finish(None, 0, 0).unwrap();
        let codecs = file.windows(6).filter(|bytes| bytes[..5] == *b"GBLK\x02").map(|bytes| bytes[5]);
        let (as_it_is, compressed): (Vec<u8>, Vec<u8>) = codecs.partition(|&codec| codec == 0);
        assert!(as_it_is.len() > 500 && compressed.len() > 500);
        assert!(read(&file).unwrap().0 == written);
        file.len()
    });
    assert!(calm + calm / 100 < haste, "{calm} and {haste} bytes");
}

#[test]
fn a_file_cut_anywhere_is_good_up_to_there() {
    let written = events(300);
    let whole = write(&written);
    let written = without_time(written);
    for len in 0..whole.len() {
        match read(&whole[..len]) {
            Ok((back, reader)) => {
                let back = without_time(back);
                assert_eq!(back, written[..back.len()]);
                assert!(reader.end().is_none());
            }
            Err(Error::Empty) => assert_eq!(len, 0),
            Err(Error::NoInfo { .. }) => {}
            Err(error) => panic!("cut at {len}: {error}"),
        }
    }
}

#[test]
fn a_flipped_bit_is_noticed() {
    let whole = write(&events(300));
    for at in 16..whole.len() {
        let mut bad = whole.clone();
        bad[at] ^= 0x10;
        match read(&bad) {
            Err(_) => {}
            // A length that grew points past the end of the file: the same as a file cut short.
            Ok((_, reader)) => assert!(reader.is_cut(), "byte {at}"),
        }
    }
}

#[test]
fn other_files_are_named_for_what_they_are() {
    assert!(matches!(read(b""), Err(Error::Empty)));
    assert!(matches!(read(b"\x7fELF rubbish"), Err(Error::NotATrace { .. })));
    let mut newer = write(&[]);
    newer[8] = 99;
    assert!(matches!(read(&newer), Err(Error::Version { found: 99, .. })));
}
