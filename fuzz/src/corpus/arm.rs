//! Which of Arm's 32-bit instruction sets a function is in, and what in a text section is data.
//!
//! Sources: ELF for the Arm Architecture (AAELF32), 5.5.3 (bit 0 of a function's value) and 5.5.5 (mapping symbols);
//! Exception Handling ABI for the Arm Architecture (EHABI32), 6 (the index table).

use std::collections::BTreeMap;

use grapnel_relocator::Isa;
use object::{Object, ObjectSection, ObjectSymbol};

use super::elf::Extents;

/// What a mapping symbol says of the bytes from its address on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mark {
    Code(Isa),
    Data,
}

/// The mapping symbols of a file. A stripped file has none.
pub(super) struct Marks(BTreeMap<u64, Mark>);

impl Marks {
    pub(super) fn read(file: &object::File<'_>) -> Self {
        let mut marks = BTreeMap::new();
        for symbol in file.symbols() {
            let Ok(name) = symbol.name() else { continue };
            let mark = match name.split('.').next() {
                Some("$a") => Mark::Code(Isa::A32),
                Some("$t") => Mark::Code(Isa::T32),
                Some("$x") => Mark::Code(Isa::Aarch64),
                Some("$d") => Mark::Data,
                _ => continue,
            };
            marks.insert(symbol.address(), mark);
        }
        Self(marks)
    }

    fn at(&self, addr: u64) -> Option<Mark> {
        self.0.range(..=addr).next_back().map(|(_, &mark)| mark)
    }

    pub(super) fn is_data(&self, addr: u64) -> bool {
        self.at(addr) == Some(Mark::Data)
    }
}

/// The functions of one of the two instruction sets: of those that symbols tell, and of those that the index table tells.
///
/// The index table doesn't say the instruction set, and several functions with the same rules may share an entry, so it
/// gives starts only. Without mapping symbols such a start is taken to be of the set that most symbols of the file are
/// of, unless its bytes look like the other.
pub(super) fn of_isa(file: &object::File<'_>, symbols: &Extents, marks: &Marks, isa: Isa) -> Extents {
    let mut found = BTreeMap::new();
    let mut balance = 0i64;
    for (&value, &size) in symbols {
        let thumb = value & 1 == 1;
        balance += if thumb { 1 } else { -1 };
        found.insert(value & !1, (size, if thumb { Isa::T32 } else { Isa::A32 }));
    }
    let usual = if balance > 0 { Isa::T32 } else { Isa::A32 };
    let texts: Vec<_> = file
        .sections()
        .filter(|section| section.kind() == object::SectionKind::Text)
        .filter_map(|section| Some((section.address(), section.data().ok()?)))
        .collect();
    for start in indexed(file) {
        let Some(bytes) = texts.iter().find_map(|(at, text)| {
            text.get(start.checked_sub(*at)? as usize..).filter(|bytes| !bytes.is_empty())
        }) else {
            continue;
        };
        let of = match marks.at(start) {
            Some(Mark::Code(isa)) => isa,
            _ if !start.is_multiple_of(4) => Isa::T32,
            _ => looks_like(bytes).unwrap_or(usual),
        };
        found.entry(start).or_insert((None, of));
    }
    let starts: Vec<u64> = found.keys().copied().collect();
    let next = |start: u64| starts.get(starts.partition_point(|&other| other <= start)).copied();
    let of_isa = found.into_iter().filter(|&(_, (_, of))| of == isa);
    of_isa
        .map(|(start, (size, _))| {
            // Where the next function begins so soon, this one is no longer.
            let room = next(start).map(|next| next - start).filter(|&room| room <= SHORT);
            (start, size.or(room))
        })
        .collect()
}

/// Functions without a known length that are followed by another one within this many bytes end there at the latest.
const SHORT: u64 = 16;

/// The starts that `.ARM.exidx` lists: words relative to themselves, of 31 bits.
fn indexed(file: &object::File<'_>) -> Vec<u64> {
    let Some(section) = file.section_by_name(".ARM.exidx") else { return Vec::new() };
    let Ok(data) = section.data() else { return Vec::new() };
    let (entries, _) = data.as_chunks::<8>();
    let start = |(number, entry): (usize, &[u8; 8])| {
        let [a, b, c, d, ..] = *entry;
        let offset = (i32::from_le_bytes([a, b, c, d]) << 1) >> 1;
        let at = section.address() + number as u64 * 8;
        u64::from((at as u32).wrapping_add_signed(offset) & !1)
    };
    entries.iter().enumerate().map(start).collect()
}

/// A32 instructions have AL in the top four bits for the most part, where T32 halfwords have anything.
fn looks_like(bytes: &[u8]) -> Option<Isa> {
    let (words, _) = bytes[..bytes.len().min(48)].as_chunks::<4>();
    let always = words.iter().filter(|word| word[3] >> 4 == 0xe).count();
    match (words.len(), always * 10) {
        (0..=3, _) => None,
        (all, always) if always >= all * 6 => Some(Isa::A32),
        (all, always) if always <= all * 3 => Some(Isa::T32),
        _ => None,
    }
}
