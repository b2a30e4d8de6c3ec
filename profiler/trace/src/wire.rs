//! Records in a ring: whole 64-bit words, the first with the kind in its low byte.
//!
//! | kind | words |
//! |---|---|
//! | NODE | `pc<<8 \| kind`, `parent \| (module \| flags<<24)<<32` (nodes of a ring are numbered from 1 in order) |
//! | NODES | `(count \| parent<<8)<<8 \| kind`, then `pc \| flags<<48 \| module<<52` of each: the first below `parent`, each other below the one before |
//! | ALLOC + source | `address<<8 \| kind`, `node \| size<<32` |
//! | FREE, REALLOC_BEGIN, REALLOC_FAILED | `address<<8 \| kind` |
//! | REALLOC_END | as ALLOC, then the old address |
//! | LARGE | `value<<8 \| kind`: the upper part of the next record's size |
//! | CLOCK | `kind`, ticks |
//! | THREAD | `tid<<8 \| kind`, 16 bytes of name |
//! | RESET | `kind`: nodes are numbered from 1 again |
//! | MODULE | `bytes<<8 \| kind`, then [`encode_module`]'s bytes padded to words |
//! | UNLOAD, LOST | `value<<8 \| kind` |
//! | ALIGNED | `alignment<<8 \| kind`: of the next record of the heap ([`Alignment::to_u8`]) |
//! | SAMPLED | `mean<<8 \| kind`: of the thread's allocations from here on |
//! | UNSAMPLED | `address<<8 \| kind`: the block that was exchanged for one that isn't recorded |
//! | MAP + what | as ALLOC, of a range that was mapped ([`Mapped`]) |
//! | UNMAP | `address<<8 \| kind`, `size<<32` |
//! | REMAP | as REALLOC_END, of ranges |
//! | MAP_FAILED | `kind`: the last UNMAP did not come about |
//! | HEAP | `bytes<<8 \| kind`, then [`Heap::encode`]'s bytes padded to words |
//! | HEAP_END | `id<<8 \| kind`: that heap's blocks are gone |
//! | NAME | `bytes<<8 \| kind`, then bytes padded to words: the name of the next MARK |
//! | MARK | `what<<8 \| kind`: a moment ([`Mark`]) |
//! | IN_HEAP | `id<<8 \| kind`: the next record of the heap is of this one |
//! | FREED_AS | `how<<8 \| kind`, node, size: how the next record of the heap gives its block back ([`FreedAs`]) |
//!
//! While a process has one ring, ring 0, the records of the heap and of mappings are as above: the ring's order is theirs. As soon as
//! it has a second one, they are [numbered](NUMBERED): their kind has a bit more, and their second word is
//! `seq | ticks<<32`, an [`Order`].
//!
//! Two numbers order events of different rings; both are taken before a block is given back and after it was
//! given out. `seq` counts the events of one [`shard`] of the address space: it puts the events of each block in
//! their true order, without fail. Ranges overlap: all records of mappings, the ends of
//! heaps, and marks, are of the shard of address 0. The ticks of the processor's clock (x86-64: the time stamp counter) put the
//! rest in order, to within what a processor reorders; they are also the event's time. A record has the lower half
//! of its ticks: the whole is the number nearest to that of the ring's last CLOCK.

use crate::event::{Module, Source};
use crate::heaps::Heap;
use crate::mapping::Mapped;
use crate::mark::Mark;
use crate::release::{Alignment, FreedAs};
use alloc::vec::Vec;

mod read;

pub use read::{
    BadRecord, HEAP_WORDS, HeapRecord, NODE_WORDS, Record, heap_record, parse, whole_heap_record, whole_node,
    whole_nodes,
};

/// Kinds of records.
pub mod kind {
    #![expect(missing_docs, reason = "the table above says what each is")]
    pub const NODE: u8 = 1;
    pub const NODES: u8 = 2;
    pub const FREE: u8 = 3;
    pub const REALLOC_BEGIN: u8 = 4;
    pub const REALLOC_END: u8 = 5;
    pub const REALLOC_FAILED: u8 = 6;
    pub const THREAD: u8 = 7;
    pub const RESET: u8 = 8;
    pub const MODULE: u8 = 9;
    pub const UNLOAD: u8 = 10;
    pub const LOST: u8 = 11;
    pub const LARGE: u8 = 12;
    pub const CLOCK: u8 = 13;
    pub const ALIGNED: u8 = 14;
    pub const FREED_AS: u8 = 15;
    pub const SAMPLED: u8 = 32;
    pub const UNSAMPLED: u8 = 33;
    pub const HEAP: u8 = 36;
    pub const IN_HEAP: u8 = 37;
    pub const NAME: u8 = 38;
    /// The first of as many as there are sources.
    pub const ALLOC: u8 = 16;
    /// The first of as many as a mapping may be of.
    pub const MAP: u8 = 48;
    pub const UNMAP: u8 = 56;
    pub const REMAP: u8 = 57;
    pub const MAP_FAILED: u8 = 58;
    pub const HEAP_END: u8 = 59;
    pub const MARK: u8 = 60;
}

/// What is added to the kind of a record that has a place among those of other rings.
pub const NUMBERED: u8 = 0x80;

/// Number of shards, a power of two.
pub const SHARDS: usize = 4096;

/// Sizes have 56 bits; no allocation that succeeds is larger.
const SIZE_MASK: u64 = (1 << 56) - 1;

/// The most words that a record may have.
pub const MAX_WORDS: usize = 1024;

/// The shard that an address belongs to.
///
/// The numbers of 16 shards lie in one cache line, and each thread most often has memory of its own: so 64 kB of
/// addresses share a line, and its blocks are spread over the line's shards. Threads that work in different memory then
/// seldom wait for each other's line.
#[inline]
pub fn shard(address: u64) -> usize {
    const LINE: u32 = 4;
    const LINES: u32 = SHARDS.trailing_zeros() - LINE;
    let mixed = |value: u64, bits: u32| (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize;
    mixed(address >> 16, LINES) << LINE | mixed(address >> 4, LINE)
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
    /// The lower half of the processor's clock.
    pub ticks: u32,
}

impl Order {
    fn word(self) -> u64 {
        u64::from(self.seq) | (u64::from(self.ticks) << 32)
    }

    /// The place that this word of a record says.
    #[inline]
    pub fn of(word: u64) -> Self {
        Self { seq: word as u32, ticks: (word >> 32) as u32 }
    }

    /// The whole clock, where `clock` is that of the ring's last CLOCK.
    #[inline]
    pub fn ticks_near(self, clock: u64) -> u64 {
        let distance = self.ticks.wrapping_sub(clock as u32) as i32;
        clock.wrapping_add_signed(i64::from(distance))
    }
}

/// Whether the lower half of `ticks` is enough after a CLOCK of `clock`.
#[inline]
pub fn is_near(ticks: u64, clock: u64) -> bool {
    const NEAR: u64 = 1 << 30;
    ticks.wrapping_sub(clock).wrapping_add(NEAR) < 2 * NEAR
}

/// A stack node.
#[inline]
pub fn node(parent: u32, pc: u64, module: u32, flags: u8) -> [u64; 2] {
    let place = (module & 0xff_ffff) | (u32::from(flags) << 24);
    [head(pc, kind::NODE), u64::from(parent) | (u64::from(place) << 32)]
}

/// The most nodes of a NODES record.
pub const MOST_NODES: usize = 64;

/// The first word of a NODES record of so many nodes, at most [`MOST_NODES`].
#[inline]
pub fn nodes(parent: u32, count: usize) -> u64 {
    head(count as u64 | (u64::from(parent) << 8), kind::NODES)
}

/// Where in a node of a NODES record its flags begin. Below them there is the pc.
pub const FLAGS_AT: u32 = 48;
/// Where in a node of a NODES record its module begins.
pub const MODULE_AT: u32 = 52;

/// A node of a NODES record; `None` where its numbers are larger than there is room for.
#[inline]
pub fn frame(pc: u64, module: u32, flags: u8) -> Option<u64> {
    let fits = pc >> FLAGS_AT == 0 && module >> (64 - MODULE_AT) == 0 && flags >> (MODULE_AT - FLAGS_AT) == 0;
    fits.then_some(pc | (u64::from(flags) << FLAGS_AT) | (u64::from(module) << MODULE_AT))
}

/// The inverse of [`frame`]: pc, module, flags.
#[inline]
pub fn frame_of(word: u64) -> (u64, u32, u8) {
    let flags = (word >> FLAGS_AT) as u8 & ((1 << (MODULE_AT - FLAGS_AT)) - 1);
    (word & ((1 << FLAGS_AT) - 1), (word >> MODULE_AT) as u32, flags)
}

/// A clock that later records refer to.
#[inline]
pub fn clock(ticks: u64) -> [u64; 2] {
    [u64::from(kind::CLOCK), ticks]
}

/// What has to stand before a record with this size.
#[inline]
pub fn large(size: u64) -> Option<[u64; 1]> {
    let upper = (size & SIZE_MASK) >> 32;
    (upper != 0).then_some([head(upper, kind::LARGE)])
}

/// A block that was given out.
#[inline]
pub fn alloc(address: u64, node: u32, size: u64, source: Source) -> [u64; 2] {
    [head(address, kind::ALLOC + source as u8), u64::from(node) | (size << 32)]
}

/// One of the records that say only an address: FREE, REALLOC_BEGIN, REALLOC_FAILED.
#[inline]
pub fn plain(kind: u8, address: u64) -> [u64; 1] {
    [head(address, kind)]
}

/// The end of a successful `realloc`.
#[inline]
pub fn realloc_end(address: u64, node: u32, size: u64, old: u64) -> [u64; 3] {
    [head(address, kind::REALLOC_END), u64::from(node) | (size << 32), old]
}

/// A range that was mapped.
#[inline]
pub fn map(address: u64, node: u32, size: u64, mapped: Mapped) -> [u64; 2] {
    [head(address, kind::MAP + mapped as u8), u64::from(node) | (size << 32)]
}

/// A range that goes.
#[inline]
pub fn unmap(address: u64, size: u64) -> [u64; 2] {
    [head(address, kind::UNMAP), size << 32]
}

/// A range that `mremap` gave.
#[inline]
pub fn remap(address: u64, node: u32, size: u64, old: u64) -> [u64; 3] {
    [head(address, kind::REMAP), u64::from(node) | (size << 32), old]
}

/// A record of the heap of `N` words, numbered: `M` is `N` + 1.
#[inline]
pub fn numbered<const N: usize, const M: usize>(record: [u64; N], order: Order) -> [u64; M] {
    const { assert!(M == N + 1) };
    core::array::from_fn(|at| match at {
        0 => record[0] | u64::from(NUMBERED),
        1 => order.word(),
        _ => record[at - 1],
    })
}

/// What has to stand before a record of a block that was asked to be aligned.
#[inline]
pub fn aligned(alignment: Alignment) -> [u64; 1] {
    [head(u64::from(alignment.to_u8()), kind::ALIGNED)]
}

/// What stands before a record of a block that seems to be given back in another way than it was got.
pub fn freed_as(said: &FreedAs) -> [u64; 3] {
    [head(said.code(), kind::FREED_AS), u64::from(said.stack), said.size.unwrap_or(0)]
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
    of_bytes(kind::MODULE, &bytes)
}

/// A heap as a record's words.
pub fn heap(heap: &Heap) -> Vec<u64> {
    let mut bytes = Vec::new();
    heap.encode(&mut bytes);
    of_bytes(kind::HEAP, &bytes)
}

/// The name of the next mark as a record's words.
pub fn name(name: &[u8]) -> Vec<u64> {
    of_bytes(kind::NAME, &name[..name.len().min(crate::mark::MAX_MARK)])
}

/// A mark, whose name stands before it.
pub fn mark(mark: &Mark) -> [u64; 1] {
    [head(u64::from(mark.code()), kind::MARK)]
}

fn of_bytes(kind: u8, bytes: &[u8]) -> Vec<u64> {
    let mut words = Vec::with_capacity(1 + bytes.len().div_ceil(8));
    words.push(head(bytes.len() as u64, kind));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heaps::HeapKind;
    use crate::release::Release;

    fn back(words: &[u64]) -> Record {
        assert_eq!(parse(&words[..words.len() - 1]), Ok(None), "a cut record is not yet one");
        let (record, len) = parse(words).unwrap().unwrap();
        assert_eq!(len, words.len());
        record
    }

    fn heap_back(words: &[u64]) -> HeapRecord {
        let Record::OfHeap(record) = back(words) else { panic!("not of the heap") };
        assert_eq!(record.len, words.len());
        record
    }

    #[test]
    fn records_come_back() {
        let pc = 0x7fff_1234_5678;
        assert_eq!(
            back(&node(7, pc, 0x12_3456, 3)),
            Record::Node { parent: 7, pc, module: 0x12_3456, flags: 3 }
        );
        let frames = [frame(pc, 0xfff, 15), frame((1 << 48) - 1, 0, 0)].map(Option::unwrap);
        assert_eq!(frames.map(frame_of), [(pc, 0xfff, 15), ((1 << 48) - 1, 0, 0)]);
        assert_eq!([frame(1 << 48, 0, 0), frame(pc, 0x1000, 0), frame(pc, 0, 16)], [None; 3]);
        assert_eq!(
            back(&[nodes(u32::MAX, 2), frames[0], frames[1]]),
            Record::Nodes { parent: u32::MAX, frames: frames.to_vec() }
        );
        let order = Order { seq: u32::MAX, ticks: u32::MAX - 1 };
        let plain = plain(kind::FREE, pc);
        let alloc = alloc(pc, 9, 77, Source::Aligned);
        let end = realloc_end(pc, u32::MAX, 1 << 31, 4);
        for order in [None, Some(order)] {
            let with =
                |plain: &[u64], numbered: &[u64]| heap_back(if order.is_some() { numbered } else { plain });
            let number = order.unwrap_or_default();
            let found = with(&plain, &numbered::<1, 2>(plain, number));
            assert_eq!((found.kind, found.address, found.order), (kind::FREE, pc, order));
            let found = with(&alloc, &numbered::<2, 3>(alloc, number));
            assert_eq!((found.source(), found.address, found.order), (Some(Source::Aligned), pc, order));
            assert_eq!((found.node, found.size), (9, 77));
            let found = with(&end, &numbered::<3, 4>(end, number));
            assert_eq!((found.kind, found.address, found.order), (kind::REALLOC_END, pc, order));
            assert_eq!((found.node, found.size, found.old), (u32::MAX, 1 << 31, 4));
        }
        for mapped in Mapped::ALL {
            let record = heap_back(&map(pc, 9, 4096, mapped));
            assert_eq!((record.mapped(), record.source()), (Some(mapped), None));
            assert_eq!((record.address, record.node, record.size), (pc, 9, 4096));
            assert_eq!(record.shard(), shard(0));
        }
        let record = heap_back(&numbered::<2, 3>(unmap(pc, 77), order));
        assert_eq!((record.kind, record.address, record.size), (kind::UNMAP, pc, 77));
        let record = heap_back(&remap(pc, 9, 77, 5));
        assert_eq!((record.kind, record.node, record.size, record.old), (kind::REMAP, 9, 77, 5));
        assert_eq!(heap_back(&super::plain(kind::MAP_FAILED, 0)).kind, kind::MAP_FAILED);
        let end = heap_back(&super::plain(kind::HEAP_END, 7));
        assert_eq!((end.kind, end.address, end.shard()), (kind::HEAP_END, 7, shard(0)));
        assert_eq!(back(&[head(7, kind::IN_HEAP)]), Record::InHeap(7));
        let pool = Heap { id: 7, kind: HeapKind::Pool, name: b"nodes".to_vec() };
        assert_eq!(back(&heap(&pool)), Record::Heap(pool));
        assert_eq!(large(u64::from(u32::MAX)), None);
        assert_eq!(large(5 << 32).map(|words| back(&words)), Some(Record::Large(5)));
        assert_eq!(back(&clock(u64::MAX - 5)), Record::Clock(u64::MAX - 5));
        let alignment = Alignment::of(4096);
        assert_eq!(back(&aligned(alignment)), Record::Aligned(alignment));
        let said =
            FreedAs { thread: 0, stack: 77, release: Release::DeleteArray, alignment, size: Some(u64::MAX) };
        assert_eq!(back(&freed_as(&said)), Record::FreedAs(said));
        assert_eq!(back(&[head(1 << 32, kind::SAMPLED)]), Record::Sampled(1 << 32));
        assert_eq!(back(&[head(pc, kind::UNSAMPLED)]), Record::Unsampled(pc));
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
    fn blocks_spread_over_a_line_of_shards_and_regions_over_all_lines() {
        let near: Vec<usize> = (0..1000).map(|n| shard(0x7f12_3400_0000 + 48 * n)).collect();
        for at in 0..16 {
            let in_shard = near.iter().filter(|shard| **shard == near[0] / 16 * 16 + at).count();
            assert!((30..120).contains(&in_shard), "{in_shard}");
        }
        assert!(near.iter().all(|shard| shard / 16 == near[0] / 16));
        let mut lines: Vec<usize> = (0..4096).map(|n| shard(0x5555_0000_0000 + (n << 16)) / 16).collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), SHARDS / 16);
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
        let no_source = kind::ALLOC + Source::LAST as u8 + 1;
        let no_mapping = head(16, kind::MAP + Mapped::LAST as u8 + 1);
        let node = kind::NODE | NUMBERED;
        let alignment = head(65, kind::ALIGNED);
        let release = head(4, kind::FREED_AS);
        let module = head(u64::MAX >> 8, kind::MODULE);
        for word in [
            0,
            0xff,
            module,
            no_mapping,
            head(16, no_source),
            head(16, node),
            alignment,
            release,
            head(0, kind::SAMPLED),
            nodes(7, 0),
            nodes(7, MOST_NODES + 1),
        ] {
            assert_eq!(parse(&[word, 0, 0, 0, 0]), Err(BadRecord(word)));
        }
    }

    #[test]
    fn half_a_clock_is_enough_as_long_as_it_is_near() {
        for clock in [0, 1 << 31, 3 << 40, u64::MAX - 7] {
            for ticks in [clock, clock.wrapping_add((1 << 30) - 1), clock.wrapping_sub(1 << 30)] {
                assert!(is_near(ticks, clock));
                assert_eq!(Order { seq: 0, ticks: ticks as u32 }.ticks_near(clock), ticks);
            }
            assert!(!is_near(clock.wrapping_add(1 << 30), clock));
            assert!(!is_near(clock.wrapping_sub((1 << 30) + 1), clock));
        }
    }
}
