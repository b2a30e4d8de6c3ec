//! What is found of memory that is made up, with words of either width.

use super::*;

/// Memory that is made up: words from some addresses on.
pub(crate) struct Words(Width, Vec<(u64, Vec<u64>)>);

impl Words {
    pub(crate) fn new(width: Width, parts: &[(u64, &[u64])]) -> Self {
        Self(width, parts.iter().map(|&(address, words)| (address, words.to_vec())).collect())
    }
}

impl Memory for Words {
    fn width(&self) -> Width {
        self.0
    }

    fn present(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        vec![range]
    }

    fn read(&mut self, address: u64, words: &mut [u64]) -> usize {
        let bytes = self.0.bytes();
        let part = self
            .1
            .iter()
            .find(|(start, part)| (*start..start + bytes * part.len() as u64).contains(&address));
        let Some((start, part)) = part else { return 0 };
        let from = &part[((address - start) / bytes) as usize..];
        words.iter_mut().zip(from).map(|(to, from)| *to = *from).count()
    }
}

pub(crate) struct NoNames;
impl Naming for NoNames {
    fn variable(&mut self, _: u32, _: u64) -> Option<(Range<u64>, Vec<u8>)> {
        None
    }
    fn thread(&mut self, _: u32) -> Vec<u8> {
        Vec::new()
    }
}

/// Where the roots lie, and where block N does, of 64 bytes.
const GLOBALS: u64 = 0x10_0000;
fn at(block: u64) -> u64 {
    0x20_0000 + 0x100 * block
}

const WIDTHS: [Width; 2] = [Width::Bits32, Width::Bits64];

fn range(kind: RootKind, words: usize) -> RootRange {
    range_of(Width::Bits64, kind, words)
}

fn range_of(width: Width, kind: RootKind, words: usize) -> RootRange {
    let range = GLOBALS..GLOBALS + width.bytes() * words as u64;
    RootRange { root: range.clone(), range, kind, thread: 0, module: 1 }
}

/// Scans roots with these words, and blocks with pointers to places. What holds each block: a block, or a root. It is the same
/// with words of either width.
fn run(policy: Policy, roots: &[u64], blocks: &[&[u64]]) -> Vec<Result<u32, RootKind>> {
    let [narrow, wide] = WIDTHS.map(|width| run_with(width, policy, roots, blocks));
    assert_eq!(narrow, wide);
    wide
}

fn run_with(width: Width, policy: Policy, roots: &[u64], blocks: &[&[u64]]) -> Vec<Result<u32, RootKind>> {
    let mut memory = Words::new(width, &[(GLOBALS, roots)]);
    for (number, words) in (0..).zip(blocks) {
        let all = (64 / width.bytes()) as usize;
        memory.1.push((at(number), [words, &[0; 16][words.len()..all]].concat()));
    }
    let live = (0..blocks.len() as u64).map(|n| Block { address: at(n), size: 64, stack: 1 }).collect();
    let blocks = Blocks::new(live);
    let roots = Roots { ranges: vec![range_of(width, RootKind::Global, roots.len())], ..Roots::default() };
    let found = scan(&blocks, &roots, policy, &mut memory, &mut NoNames);
    assert_eq!(found.doubts, 0);
    let kind = |holder: u32| found.roots[(holder & !OF_ROOT) as usize].kind;
    let holder = |&holder: &u32| if holder & OF_ROOT == 0 { Ok(holder) } else { Err(kind(holder)) };
    found.holders.iter().map(holder).collect()
}

const LOST: Result<u32, RootKind> = Err(RootKind::Lost);
const HELD: Result<u32, RootKind> = Err(RootKind::Global);
const POSSIBLE: Result<u32, RootKind> = Err(RootKind::Possible);

#[test]
fn what_roots_lead_to_is_held_and_the_rest_is_lost() {
    let blocks: [&[u64]; 5] = [&[at(1)], &[0, at(2)], &[], &[at(4)], &[]];
    assert_eq!(run(Policy::default(), &[7, at(0), u64::MAX], &blocks), [HELD, Ok(0), Ok(1), LOST, Ok(3)]);
}

#[test]
fn paths_are_the_shortest() {
    let blocks: [&[u64]; 4] = [&[at(1)], &[at(2)], &[at(3)], &[]];
    assert_eq!(run(Policy::default(), &[at(0), at(2)], &blocks), [HELD, Ok(0), HELD, Ok(2)]);
}

#[test]
fn of_a_lost_circle_one_leads_and_what_leads_to_it_leads_all() {
    // 0 -> 1 -> 2 -> 0; 3 to itself; 4 to one of the circle.
    let mut blocks: [&[u64]; 5] = [&[at(1)], &[at(2)], &[at(0)], &[at(3)], &[]];
    let policy = Policy::default();
    assert_eq!(run(policy, &[], &blocks), [LOST, Ok(0), Ok(1), LOST, LOST]);
    let into = [[at(0)], [at(1)], [at(2)]];
    let circles = [[Ok(4), Ok(0), Ok(1)], [Ok(2), Ok(4), Ok(1)], [Ok(2), Ok(0), Ok(4)]];
    for (into, circle) in into.iter().zip(circles) {
        blocks[4] = into;
        assert_eq!(run(policy, &[], &blocks), [&circle[..], &[LOST, LOST]].concat());
    }
}

#[test]
fn policies_say_which_pointers_inside_count() {
    // An array of two objects behind its cookie; a block that is pointed into; what that one holds.
    let blocks: [&[u64]; 3] = [&[2], &[at(2) + 1], &[]];
    for width in WIDTHS {
        let roots = [at(0) + width.bytes(), at(1) + 24];
        let with = |interior| run_with(width, Policy { interior, tags: 0 }, &roots, &blocks);
        assert_eq!(with(Interior::All), [HELD, HELD, Ok(1)]);
        assert_eq!(with(Interior::Known), [HELD, POSSIBLE, Ok(1)]);
        assert_eq!(with(Interior::Start), [POSSIBLE, POSSIBLE, Ok(1)]);
    }
}

#[test]
fn tags_are_taken_out() {
    let blocks: [&[u64]; 2] = [&[at(1) | 0xab << 56 | 5], &[]];
    let tags = 0xff << 56 | 7;
    let roots = [at(0) | 0x12 << 56];
    let run = |policy| run_with(Width::Bits64, policy, &roots, &blocks);
    assert_eq!(run(Policy { interior: Interior::Start, tags }), [HELD, Ok(0)]);
    assert_eq!(run(Policy::default()), [LOST, LOST]);
}

#[test]
fn roots_in_blocks_are_the_blocks_own() {
    // The range of roots has the blocks in it, as a heap that isn't known has.
    let mut memory = Words::new(Width::Bits64, &[(at(0), &[0; 64]), (GLOBALS, &[])]);
    memory.1[0].1[0] = at(1);
    memory.1[0].1[20] = at(1);
    let blocks = Blocks::new((0..2).map(|n| Block { address: at(n), size: 64, stack: 0 }).collect());
    let heap = at(0)..at(2);
    let heap = RootRange { root: heap.clone(), range: heap, ..range(RootKind::Before, 0) };
    let roots = Roots { ranges: vec![heap], ..Roots::default() };
    let found = scan(&blocks, &roots, Policy::default(), &mut memory, &mut NoNames);
    assert_eq!(found.roots[(found.holders[1] & !OF_ROOT) as usize].kind, RootKind::Before);
    assert_eq!(found.roots[(found.holders[0] & !OF_ROOT) as usize].kind, RootKind::Lost);
    assert_eq!((found.offsets[1], found.root_bytes), (160, 2 * 256 - 128));
}

#[test]
fn an_allocators_pointer_to_the_chunk_behind_is_none_to_the_block() {
    for width in WIDTHS {
        let word = width.bytes();
        // Of 7 words the last is the first of the next chunk, of 6 none.
        let found = |size: u64, offset: u64, allocators: Vec<u32>| {
            let mut memory = Words::new(width, &[(GLOBALS, &[at(0) + offset]), (at(0), &[0; 8])]);
            let blocks = Blocks::new(vec![Block { address: at(0), size, stack: 0 }]);
            let ranges = vec![range_of(width, RootKind::Global, 1)];
            let roots = Roots { ranges, allocators, ..Roots::default() };
            let found = scan(&blocks, &roots, Policy::default(), &mut memory, &mut NoNames);
            found.roots[0].kind
        };
        assert_eq!(found(7 * word, 6 * word, vec![1]), RootKind::Lost);
        assert_eq!(found(6 * word + 1, 6 * word, vec![1]), RootKind::Lost);
        assert_eq!(found(7 * word, 6 * word, vec![2]), RootKind::Global);
        assert_eq!(found(7 * word, 5 * word, vec![1]), RootKind::Global);
        assert_eq!(found(7 * word, 0, vec![1]), RootKind::Global);
        assert_eq!(found(8 * word, 7 * word, vec![1]), RootKind::Global);
        // The least chunk has room for 3 words.
        assert_eq!(found(2 * word + 1, 2 * word, vec![1]), RootKind::Lost);
        assert_eq!(found(word, 0, vec![1]), RootKind::Global);
    }
}

/// An image of bytes, as a process of 32 bits leaves one: pointers at every fourth byte, and memory up to where addresses end.
struct Image(u64, Vec<u8>);

impl Memory for Image {
    fn width(&self) -> Width {
        Width::Bits32
    }

    fn present(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        vec![range]
    }

    fn read(&mut self, address: u64, words: &mut [u64]) -> usize {
        let bytes = address.checked_sub(self.0).and_then(|from| self.1.get(from as usize..));
        bytes.map_or(0, |bytes| Width::Bits32.words(bytes, words))
    }
}

#[test]
fn an_image_of_32_bits_is_read_by_words_of_32_bits() {
    const IMAGE: u64 = 0xffff_8000;
    let place = |words: u64| IMAGE + 4 * words;
    let mut image = Image(IMAGE, vec![0; 0x8000]);
    let mut put = |at: u64, value: u64| {
        let at = (at - IMAGE) as usize;
        image.1[at..at + 4].copy_from_slice(&u32::try_from(value).unwrap().to_ne_bytes());
    };
    // Five variables, of which the second and third lie in one word of 64 bits, and numbers beside them.
    let variables = place(1)..place(6);
    let block = |n: u64| place(0x400 + 0x10 * n);
    put(place(1), 7);
    put(place(2), block(0));
    put(place(3), block(1) + 5);
    put(place(4), u64::from(u32::MAX) >> 1);
    // The last word that blocks have leads to the next; blocks 3 and 4 lead to each other, and 5 to them; 6 leads to itself.
    put(block(0) + 36, block(2));
    put(block(3) + 4, block(4));
    put(block(4) + 12, block(3) + 39);
    put(block(5), block(4));
    put(block(6), block(6));
    // What lies there by chance over two words is no pointer.
    put(block(2), block(7) << 16 & 0xffff_ffff);
    put(block(2) + 4, block(7) >> 16);
    // The last word that there is leads to the block before it, and is that block's own.
    put(0xffff_fffc, 0xffff_ffd8);
    let blocks = (0..8).map(|n| Block { address: block(n), size: 40, stack: 0 });
    let blocks = blocks.chain([Block { address: 0xffff_ffd8, size: 40, stack: 0 }]).collect();
    let blocks = Blocks::new(blocks);
    let global = RootRange { root: variables.clone(), range: variables, ..range(RootKind::Global, 0) };
    let roots = Roots { ranges: vec![global], ..Roots::default() };
    let found = |interior| {
        let policy = Policy { interior, tags: 0 };
        let found = scan(&blocks, &roots, policy, &mut Image(image.0, image.1.clone()), &mut NoNames);
        assert_eq!((found.doubts, found.root_bytes), (0, 20));
        let kind = |holder: u32| found.roots[(holder & !OF_ROOT) as usize].kind;
        let holder = |&holder: &u32| if holder & OF_ROOT == 0 { Ok(holder) } else { Err(kind(holder)) };
        (found.holders.iter().map(holder).collect::<Vec<_>>(), found.offsets)
    };
    let (holders, offsets) = found(Interior::All);
    assert_eq!(holders, [HELD, HELD, Ok(0), Ok(4), Ok(5), LOST, LOST, LOST, LOST]);
    assert_eq!(offsets, [0, 0, 36, 12, 0, 0, 0, 0, 0]);
    let (holders, _) = found(Interior::Start);
    assert_eq!(holders[..3], [HELD, POSSIBLE, Ok(0)]);
}

#[test]
fn registers_hold_too_and_what_cannot_be_read_is_said() {
    let blocks = Blocks::new(vec![Block { address: at(0), size: 64, stack: 0 }]);
    let register = |value, anywhere| Register { thread: 9, name: "rsp", value, anywhere };
    for (anywhere, kind) in [(true, RootKind::Register), (false, RootKind::Possible)] {
        let registers = vec![register(at(0) + 8, anywhere)];
        let roots = Roots { registers, ranges: vec![range(RootKind::Global, 4)], ..Roots::default() };
        let policy = Policy { interior: Interior::Start, tags: 0 };
        let found = scan(&blocks, &roots, policy, &mut Words::new(Width::Bits64, &[]), &mut NoNames);
        assert_eq!(found.roots[0].kind, kind);
        assert_eq!(found.doubts, doubts::UNREADABLE);
    }
}
