//! An ELF object in memory that describes code: what a debugger reads.
//!
//! It has the symbols of the pieces and their unwind entries. The code itself is where it is; its section has an address and
//! no contents.

use alloc::vec::Vec;
use core::ops::Range;

use grapnel_relocator::CodeAddr;

use super::{names::Names, piece::Piece};
use crate::native::{self, Layout};

const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_NOBITS: u32 = 8;
const SHF_ALLOC: usize = 2;
const SHF_EXECINSTR: usize = 4;
/// `STB_LOCAL`, `STT_FUNC`.
const LOCAL_FUNCTION: u8 = 2;

/// `size_of` a word of the file's class, and what `e_ident` calls that class.
const WORD: usize = size_of::<usize>();
const CLASS: u8 = (WORD / 4) as u8;
const HEADER: usize = 40 + 3 * WORD;
const SECTION: usize = 16 + 6 * WORD;
const SYMBOL: usize = 8 + 2 * WORD;
/// The index of the section with the code.
const TEXT: u16 = 1;

/// The names of the sections, as their headers count them.
const SECTION_NAMES: &[u8] = b"\0.text\0.symtab\0.strtab\0.shstrtab\0.eh_frame\0";

struct Section {
    name: u32,
    kind: u32,
    flags: usize,
    address: usize,
    place: Range<usize>,
    /// `sh_link`, `sh_info` and `sh_entsize`.
    link: [u32; 2],
    entry: usize,
}

/// The object. `unwind` is a section of entries, or empty.
pub(crate) fn of(pieces: &[Piece], names: &Names, unwind: &[u8], layout: Layout) -> Vec<u8> {
    let start = pieces.iter().map(|piece| piece.slot.at).min().unwrap_or(0);
    let end = pieces.iter().map(|piece| piece.slot.at + piece.slot.len).max().unwrap_or(0);

    let mut strings: Vec<u8> = [0].into();
    let mut symbols: Vec<u8> = [0; SYMBOL].into();
    for piece in pieces {
        symbols.extend_from_slice(&symbol(strings.len(), piece));
        strings.extend(names.get(piece.target).into_iter().filter(|&byte| byte != 0));
        strings.extend_from_slice(piece.kind.text());
        strings.push(0);
    }

    let mut out: Vec<u8> = [0; HEADER].into();
    let mut place = |bytes: &[u8]| {
        out.resize(out.len().next_multiple_of(8), 0);
        let at = out.len();
        out.extend_from_slice(bytes);
        at..out.len()
    };
    let count = 1 + pieces.len() as u32;
    let plain =
        |name, kind, place| Section { name, kind, flags: 0, address: 0, place, link: [0; 2], entry: 0 };
    let text = Section {
        flags: SHF_ALLOC | SHF_EXECINSTR,
        address: start,
        ..plain(1, SHT_NOBITS, HEADER..HEADER + (end - start))
    };
    let symbols = place(&symbols);
    let symbols = Section { link: [3, count], entry: SYMBOL, ..plain(7, SHT_SYMTAB, symbols) };
    let strings = plain(15, SHT_STRTAB, place(&strings));
    let section_names = plain(23, SHT_STRTAB, place(SECTION_NAMES));
    let unwind = place(unwind);
    let unwind = Section { flags: SHF_ALLOC, ..plain(33, SHT_PROGBITS, unwind) };
    let sections = [plain(0, 0, 0..0), text, symbols, strings, section_names, unwind];

    let headers = place(&[]).start;
    for section in &sections {
        header(&mut out, section);
    }
    let ident = [0x7f, b'E', b'L', b'F', CLASS, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut file: Vec<u8> = ident.into();
    // An executable: ET_EXEC, so that values of symbols are addresses.
    file.extend_from_slice(&2u16.to_le_bytes());
    file.extend_from_slice(&layout.machine.to_le_bytes());
    file.extend_from_slice(&1u32.to_le_bytes());
    for word in [0, 0, headers] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(&layout.flags.to_le_bytes());
    for half in [HEADER as u16, 0, 0, SECTION as u16, sections.len() as u16, 4] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    for (byte, value) in out.iter_mut().zip(file) {
        *byte = value;
    }
    out
}

/// A symbol of a function. In an object that is linked, values are addresses.
fn symbol(name: usize, piece: &Piece) -> Vec<u8> {
    let value = native::pointer_to(piece.isa, CodeAddr(piece.slot.at as u64)).0 as usize;
    let place = [value, piece.slot.len].map(usize::to_le_bytes);
    let [low, high] = TEXT.to_le_bytes();
    let kind = [LOCAL_FUNCTION, 0, low, high];
    let name = (name as u32).to_le_bytes();
    // The two classes have the fields in different orders.
    if WORD == 8 {
        [&name[..], &kind, place.as_flattened()].concat()
    } else {
        [&name[..], place.as_flattened(), &kind].concat()
    }
}

fn header(out: &mut Vec<u8>, section: &Section) {
    out.extend_from_slice(&section.name.to_le_bytes());
    out.extend_from_slice(&section.kind.to_le_bytes());
    for word in [section.flags, section.address, section.place.start, section.place.len()] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for half in section.link {
        out.extend_from_slice(&half.to_le_bytes());
    }
    for word in [8, section.entry] {
        out.extend_from_slice(&word.to_le_bytes());
    }
}
