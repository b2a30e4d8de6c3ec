//! Records in a ring: whole 64-bit words, the first with the kind in its low byte.
//!
//! | kind | words |
//! |---|---|
//! | NODE | `pc<<8 \| kind`, `parent \| (module \| flags<<24)<<32` (nodes of a ring are numbered from 1 in order) |
//! | ALLOC | `address<<8 \| kind`, `seq \| node<<32`, ticks, `size \| source<<56` |
//! | FREE, REALLOC_BEGIN, REALLOC_FAILED | `address<<8 \| kind`, `seq`, ticks |
//! | REALLOC_END | as ALLOC, then the old address |
//! | THREAD | `tid<<8 \| kind`, 16 bytes of name |
//! | RESET | `kind`: nodes are numbered from 1 again |
//! | MODULE | `bytes<<8 \| kind`, then [`encode_module`]'s bytes padded to words |
//! | UNLOAD, LOST | `value<<8 \| kind` |
//!
//! Two numbers order events of different rings; both are taken before a block is given back and after it was
//! given out. `seq` counts the events of one [`shard`] of the address space: it puts the events of each block in
//! their true order, without fail. The ticks of the processor's clock (x86-64: the time stamp counter) put the
//! rest in order, to within what a processor reorders; they are also the event's time.

use crate::event::{Module, Source};
use alloc::vec::Vec;

/// Kinds of records.
pub mod kind {
    #![expect(missing_docs, reason = "the table above says what each is")]
    pub const NODE: u8 = 1;
    pub const ALLOC: u8 = 2;
    pub const FREE: u8 = 3;
    pub const REALLOC_BEGIN: u8 = 4;
    pub const REALLOC_END: u8 = 5;
    pub const REALLOC_FAILED: u8 = 6;
    pub const THREAD: u8 = 7;
    pub const RESET: u8 = 8;
    pub const MODULE: u8 = 9;
    pub const UNLOAD: u8 = 10;
    pub const LOST: u8 = 11;
}

/// Number of shards, a power of two.
pub const SHARDS: usize = 4096;

/// Sizes have 56 bits; no allocation that succeeds is larger.
const SIZE_MASK: u64 = (1 << 56) - 1;

/// The most words that a record may have.
pub const MAX_WORDS: usize = 1024;

/// The shard that an address belongs to. Neighbouring blocks fall into different shards, so that threads
/// seldom meet in one.
#[inline]
pub fn shard(address: u64) -> usize {
    ((address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize & (SHARDS - 1)
}

/// First word of a record: an address (or another value below 2^56) and the kind.
#[inline]
pub fn head(value: u64, kind: u8) -> u64 {
    (value << 8) | u64::from(kind)
}

/// An event's place among those of other rings; see the module's description.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Its number in the address's shard.
    pub seq: u32,
    /// The processor's clock.
    pub ticks: u64,
}

/// A stack node.
#[inline]
pub fn node(parent: u32, pc: u64, module: u32, flags: u8) -> [u64; 2] {
    let place = (module & 0xff_ffff) | (u32::from(flags) << 24);
    [head(pc, kind::NODE), u64::from(parent) | (u64::from(place) << 32)]
}

/// A block that was given out.
#[inline]
pub fn alloc(address: u64, order: Order, node: u32, size: u64, source: Source) -> [u64; 4] {
    [
        head(address, kind::ALLOC),
        u64::from(order.seq) | (u64::from(node) << 32),
        order.ticks,
        (size & SIZE_MASK) | ((source as u64) << 56),
    ]
}

/// One of the records that say only an address: FREE, REALLOC_BEGIN, REALLOC_FAILED.
#[inline]
pub fn plain(kind: u8, address: u64, order: Order) -> [u64; 3] {
    [head(address, kind), u64::from(order.seq), order.ticks]
}

/// The end of a successful `realloc`.
#[inline]
pub fn realloc_end(address: u64, order: Order, node: u32, size: u64, old: u64) -> [u64; 5] {
    let [a, b, c, d] = alloc(address, order, node, size, Source::Realloc);
    [(a & !0xff) | u64::from(kind::REALLOC_END), b, c, d, old]
}

/// From here on the ring's events are this thread's.
pub fn thread(tid: u32, name: [u8; 16]) -> [u64; 3] {
    let (a, b) = name.split_at(8);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| (word << 8) | u64::from(byte));
    [head(u64::from(tid), kind::THREAD), word(a), word(b)]
}

/// A module as a record's words. The path is cut so that the record has at most [`MAX_WORDS`].
pub fn module(module: &Module) -> Vec<u64> {
    let mut bytes = Vec::with_capacity(64 + module.path.len());
    encode_module(module, &mut bytes);
    let mut words = Vec::with_capacity(1 + bytes.len().div_ceil(8));
    words.push(head(bytes.len() as u64, kind::MODULE));
    for chunk in bytes.chunks(8) {
        words.push(chunk.iter().rev().fold(0, |word, &byte| (word << 8) | u64::from(byte)));
    }
    words
}

const MAX_PATH: usize = 4096;
const MAX_BUILD_ID: usize = 64;

/// `id u32, bias u64, start u64, end u64, build id length u16, path length u16`, then the two, little-endian.
pub fn encode_module(module: &Module, out: &mut Vec<u8>) {
    let build_id = &module.build_id[..module.build_id.len().min(MAX_BUILD_ID)];
    let path = &module.path[..module.path.len().min(MAX_PATH)];
    out.extend_from_slice(&module.id.to_le_bytes());
    for value in [module.bias, module.range.0, module.range.1] {
        out.extend_from_slice(&value.to_le_bytes());
    }
    out.extend_from_slice(&(build_id.len() as u16).to_le_bytes());
    out.extend_from_slice(&(path.len() as u16).to_le_bytes());
    out.extend_from_slice(build_id);
    out.extend_from_slice(path);
}

/// The inverse of [`encode_module`]; `None` for bytes that it can't have made.
pub fn decode_module(bytes: &[u8]) -> Option<Module> {
    let u64_at = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let u16_at = |at: usize| Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)));
    let id = u32::from_le_bytes(*bytes.first_chunk()?);
    let (build_id_len, path_len) = (u16_at(28)?, u16_at(30)?);
    let build_id = bytes.get(32..32 + build_id_len)?.to_vec();
    let path = bytes.get(32 + build_id_len..32 + build_id_len + path_len)?.to_vec();
    Some(Module { id, bias: u64_at(4)?, range: (u64_at(12)?, u64_at(20)?), build_id, path })
}

/// A record, read back from a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the constructors above")]
pub enum Record {
    Node { parent: u32, pc: u64, module: u32, flags: u8 },
    Alloc { address: u64, order: Order, node: u32, size: u64, source: Source },
    Free { address: u64, order: Order },
    ReallocBegin { address: u64, order: Order },
    ReallocEnd { address: u64, order: Order, node: u32, size: u64, old: u64 },
    ReallocFailed { address: u64, order: Order },
    Thread { tid: u32, name: [u8; 16] },
    Reset,
    Module(Module),
    Unload(u32),
    Lost(u64),
}

/// Words that are no record: the ring's writer is not the agent, or went astray. Nothing after them can be
/// trusted, since a record's length is in its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("word {0:#x} in a ring is not the start of a record")]
pub struct BadRecord(pub u64);

/// The address and the place in the order of the record at the start of `words`, if it is of a kind that has them.
/// Whether it is all there and good only [`parse`] tells.
#[inline]
pub fn place(words: &[u64]) -> Option<(u64, Order)> {
    let &[first, second, ticks, ..] = words else { return None };
    match first as u8 {
        kind::ALLOC | kind::FREE | kind::REALLOC_BEGIN | kind::REALLOC_END | kind::REALLOC_FAILED => {
            Some((first >> 8, Order { seq: second as u32, ticks }))
        }
        _ => None,
    }
}

/// The most words that a record of the heap has.
pub const HEAP_WORDS: usize = 5;

/// A record of the heap, not looked at further: what its kind does not have is rubbish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the constructors above")]
pub struct HeapRecord {
    pub kind: u8,
    /// How many words it takes.
    pub len: usize,
    pub address: u64,
    pub order: Order,
    pub node: u32,
    pub size: u64,
    /// A number of [`Source`], unless the record is bad.
    pub source: u8,
    pub old: u64,
}

/// Reads the record of the heap at the start of `words`; `None` for another, or for none. The fast way for the many:
/// words that are not there may be anything, and the caller looks whether `len` are.
#[inline]
pub fn heap_record(words: &[u64; HEAP_WORDS]) -> Option<HeapRecord> {
    let &[first, second, ticks, fourth, old] = words;
    let kind = first as u8;
    let len = match kind {
        kind::FREE | kind::REALLOC_BEGIN | kind::REALLOC_FAILED => 3,
        kind::ALLOC => 4,
        kind::REALLOC_END => 5,
        _ => return None,
    };
    Some(HeapRecord {
        kind,
        len,
        address: first >> 8,
        order: Order { seq: second as u32, ticks },
        node: (second >> 32) as u32,
        size: fourth & SIZE_MASK,
        source: (fourth >> 56) as u8,
        old,
    })
}

/// Reads the record at the start of `words` and says how many it takes. `Ok(None)` when it is not all there.
#[inline]
pub fn parse(words: &[u64]) -> Result<Option<(Record, usize)>, BadRecord> {
    let Some(&first) = words.first() else { return Ok(None) };
    let value = first >> 8;
    let bad = BadRecord(first);
    let len = match first as u8 {
        kind::RESET | kind::UNLOAD | kind::LOST => 1,
        kind::NODE => 2,
        kind::THREAD | kind::FREE | kind::REALLOC_BEGIN | kind::REALLOC_FAILED => 3,
        kind::ALLOC => 4,
        kind::REALLOC_END => 5,
        kind::MODULE if value <= (8 * MAX_WORDS - 8) as u64 => 1 + (value as usize).div_ceil(8),
        _ => return Err(bad),
    };
    let Some(words) = words.get(..len) else { return Ok(None) };
    let seq = words.get(1).map_or(0, |&w| w as u32);
    let upper = words.get(1).map_or(0, |&w| (w >> 32) as u32);
    let order = Order { seq, ticks: words.get(2).copied().unwrap_or(0) };
    let fourth = words.get(3).copied().unwrap_or(0);
    let record = match first as u8 {
        kind::RESET => Record::Reset,
        kind::UNLOAD => Record::Unload(value as u32),
        kind::LOST => Record::Lost(value),
        kind::NODE => {
            Record::Node { parent: seq, pc: value, module: upper & 0xff_ffff, flags: (upper >> 24) as u8 }
        }
        kind::FREE => Record::Free { address: value, order },
        kind::REALLOC_BEGIN => Record::ReallocBegin { address: value, order },
        kind::REALLOC_FAILED => Record::ReallocFailed { address: value, order },
        kind::ALLOC => Record::Alloc {
            address: value,
            order,
            node: upper,
            size: fourth & SIZE_MASK,
            source: Source::from_u8((fourth >> 56) as u8).ok_or(bad)?,
        },
        kind::REALLOC_END => Record::ReallocEnd {
            address: value,
            order,
            node: upper,
            size: fourth & SIZE_MASK,
            old: words.get(4).copied().unwrap_or(0),
        },
        kind::THREAD => {
            let mut name = [0; 16];
            for (to, word) in name.chunks_mut(8).zip(&words[1..]) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            Record::Thread { tid: value as u32, name }
        }
        _ => {
            let mut bytes: Vec<u8> = words[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.truncate(value as usize);
            Record::Module(decode_module(&bytes).ok_or(bad)?)
        }
    };
    Ok(Some((record, len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(words: &[u64]) -> Record {
        assert_eq!(parse(&words[..words.len() - 1]), Ok(None), "a cut record is not yet one");
        let (record, len) = parse(words).unwrap().unwrap();
        assert_eq!(len, words.len());
        // The fast way agrees.
        let mut padded = [u64::MAX; HEAP_WORDS];
        padded.iter_mut().zip(words).for_each(|(to, &word)| *to = word);
        let fast = heap_record(&padded);
        assert_eq!(fast.map(|fast| (fast.address, fast.order)), place(words));
        assert_eq!(fast.map_or(len, |fast| fast.len), len);
        match record {
            Record::Alloc { node, size, source, .. } => {
                assert_eq!(
                    fast.map(|fast| (fast.node, fast.size, fast.source)),
                    Some((node, size, source as u8))
                );
            }
            Record::ReallocEnd { node, size, old, .. } => {
                assert_eq!(fast.map(|fast| (fast.node, fast.size, fast.old)), Some((node, size, old)));
            }
            _ => {}
        }
        record
    }

    #[test]
    fn records_come_back() {
        let pc = 0x7fff_1234_5678;
        assert_eq!(
            back(&node(7, pc, 0x12_3456, 3)),
            Record::Node { parent: 7, pc, module: 0x12_3456, flags: 3 }
        );
        let order = Order { seq: u32::MAX, ticks: u64::MAX - 1 };
        assert_eq!(
            back(&alloc(pc, order, 9, 1 << 40, Source::Aligned)),
            Record::Alloc { address: pc, order, node: 9, size: 1 << 40, source: Source::Aligned }
        );
        assert_eq!(back(&plain(kind::FREE, pc, order)), Record::Free { address: pc, order });
        assert_eq!(
            back(&realloc_end(pc, order, 2, 3, 4)),
            Record::ReallocEnd { address: pc, order, node: 2, size: 3, old: 4 }
        );
        let name = *b"a thread's name\0";
        assert_eq!(back(&thread(42, name)), Record::Thread { tid: 42, name });
        let lib = Module {
            id: 3,
            bias: 0x1000,
            range: (0x1000, 0x9000),
            build_id: alloc::vec![1; 20],
            path: b"/lib/x".to_vec(),
        };
        assert_eq!(back(&module(&lib)), Record::Module(lib));
    }

    #[test]
    fn an_overlong_path_is_cut_not_lost() {
        let lib = Module { path: alloc::vec![b'x'; 100_000], ..Module::default() };
        let words = module(&lib);
        assert!(words.len() <= MAX_WORDS);
        let Record::Module(found) = back(&words) else { panic!("not a module") };
        assert_eq!(found.path.len(), MAX_PATH);
    }

    #[test]
    fn rubbish_is_refused() {
        for word in [0, 0xff, head(u64::MAX >> 8, kind::MODULE)] {
            assert_eq!(parse(&[word, 0, 0, 0, 0]), Err(BadRecord(word)));
        }
        assert!(parse(&[head(16, kind::ALLOC), 0, 0, 0xff << 56]).is_err());
    }
}
