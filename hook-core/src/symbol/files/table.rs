//! The symbol table of a file, with what finds a name and an address in it.

use alloc::vec::Vec;
use core::{cell::OnceCell, ops::Range};

use object::{
    NativeEndian, ReadRef,
    elf::{SHN_ABS, SHN_UNDEF, SHT_SYMTAB, STB_LOCAL},
    read::elf::{FileHeader, SectionHeader, SectionTable, Sym as _},
};

use super::{Elf, contents::Contents, wide};
use crate::symbol::{Symbol, SymbolKind};

/// More symbols than any object has.
const COUNT_MAX: usize = 1 << 23;
/// How many labels inside a function are passed by on the way to its beginning.
const LABELS_WITHIN: usize = 64;

type Sym = <Elf as FileHeader>::Sym;

/// A symbol of a file, and how it is known there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSymbol<'a> {
    /// The name, without a version.
    pub name: &'a [u8],
    /// The version, if the name in the table has one.
    pub version: Option<&'a [u8]>,
    /// The symbol.
    pub symbol: Symbol,
    /// It is known within its source file only, such as a static function; there may be others of its name.
    pub local: bool,
}

/// Where a file has its symbols and their names.
#[derive(Debug)]
pub(super) struct Table {
    contents: Contents,
    symbols: Range<usize>,
    names: Range<u64>,
    bias: usize,
    /// The hash of each name, and its symbol.
    by_name: OnceCell<Vec<(u32, u32)>>,
    /// The address of each function, and its symbol.
    by_address: OnceCell<Vec<(usize, u32)>>,
}

/// Where the symbols and their names are in a file.
pub(super) type Place = (Range<usize>, Range<u64>);

/// Finds `.symtab`. `Ok(None)` if there is none, or an empty one.
pub(super) fn place<'a>(
    contents: &'a Contents,
    sections: &SectionTable<'a, Elf, &'a Contents>,
) -> Result<Option<Place>, &'static str> {
    const OUTSIDE: &str = "its symbol table lies outside the file";
    let Some(table) = sections.iter().find(|section| section.sh_type(NativeEndian) == SHT_SYMTAB) else {
        return Ok(None);
    };
    let range = |section: &<Elf as FileHeader>::SectionHeader| {
        let (offset, len) = section.file_range(NativeEndian)?;
        let end = offset.checked_add(len).filter(|&end| end <= contents.len() as u64)?;
        Some(offset..end)
    };
    // Where they are is looked at before anything of them is read.
    let symbols = range(table).ok_or(OUTSIDE)?;
    let count = (symbols.end - symbols.start) / size_of::<Sym>() as u64;
    if count <= 1 {
        return Ok(None);
    }
    if count > COUNT_MAX as u64 {
        return Err("it has more symbols than any object");
    }
    let names = sections.section(table.link(NativeEndian)).ok().and_then(range);
    let names = names.ok_or("its symbols have no names")?;
    let (start, end) = (usize::try_from(symbols.start), usize::try_from(symbols.end));
    let (Ok(start), Ok(end)) = (start, end) else { return Err(OUTSIDE) };
    Ok(Some((start..end, names)))
}

impl Table {
    pub(super) fn new(contents: Contents, (symbols, names): Place, bias: usize) -> Self {
        Self { contents, symbols, names, bias, by_name: OnceCell::new(), by_address: OnceCell::new() }
    }

    fn raw(&self) -> &[Sym] {
        let count = self.symbols.len() / size_of::<Sym>();
        (&self.contents).read_slice_at(self.symbols.start as u64, count).unwrap_or(&[])
    }

    fn symbol_of(&self, raw: &Sym) -> Option<Symbol> {
        let kind = SymbolKind::of(raw.st_info.0)?;
        if matches!(raw.st_type(), object::elf::STT_SECTION | object::elf::STT_FILE)
            || matches!(raw.st_shndx(NativeEndian), SHN_UNDEF | SHN_ABS)
        {
            return None;
        }
        let (value, size) = (wide(raw.st_value(NativeEndian)), wide(raw.st_size(NativeEndian)));
        let addr = self.bias.wrapping_add(value as usize);
        Some(Symbol { addr, size: size as usize, kind, hidden: false })
    }

    fn full_name(&self, raw: &Sym) -> Option<&[u8]> {
        let start = self.names.start.checked_add(u64::from(raw.st_name(NativeEndian)))?;
        // Many symbols may share a name, and each costs its length, which has a limit.
        (&self.contents).read_bytes_at_until(start..self.names.end, 0).ok()
    }

    /// The symbol with this index, if it has a name and an address.
    fn get(&self, index: u32) -> Option<FileSymbol<'_>> {
        let raw = self.raw().get(index as usize)?;
        let symbol = self.symbol_of(raw)?;
        let full = self.full_name(raw).filter(|name| !name.is_empty())?;
        // `name@VERSION` is a hidden one, `name@@VERSION` the default.
        let (name, version) = split(full);
        let hidden = version.is_some_and(|version| !version.starts_with(b"@"));
        let version = version.map(|version| version.strip_prefix(b"@").unwrap_or(version));
        let local = raw.st_bind() == STB_LOCAL;
        Some(FileSymbol { name, version, symbol: Symbol { hidden, ..symbol }, local })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = FileSymbol<'_>> {
        (0..self.raw().len() as u32).filter_map(|index| self.get(index))
    }

    /// The addresses of all functions whose length is known. No name is read.
    pub(super) fn functions(&self) -> impl Iterator<Item = Range<usize>> {
        self.raw().iter().filter_map(|raw| self.symbol_of(raw)?.function_range())
    }

    /// Calls `each` with every symbol of this name.
    pub(super) fn for_each_of_name<'a>(&'a self, name: &[u8], each: &mut dyn FnMut(FileSymbol<'a>)) {
        let index = self.by_name.get_or_init(|| {
            let symbols = (0..self.raw().len() as u32).filter_map(|i| Some((hash(self.get(i)?.name), i)));
            let mut index: Vec<_> = symbols.collect();
            index.sort_unstable();
            index
        });
        let wanted = hash(name);
        let first = index.partition_point(|&(hash, _)| hash < wanted);
        let same = index.iter().skip(first).take_while(|&&(hash, _)| hash == wanted);
        same.filter_map(|&(_, i)| self.get(i)).filter(|symbol| symbol.name == name).for_each(each);
    }

    /// The function around an address.
    pub(super) fn function_at(&self, address: usize) -> Option<FileSymbol<'_>> {
        let index = self.by_address.get_or_init(|| {
            let functions = (0..self.raw().len() as u32).filter_map(|i| {
                let symbol = self.symbol_of(self.raw().get(i as usize)?)?;
                symbol.kind.is_function().then_some((symbol.addr, i))
            });
            let mut index: Vec<_> = functions.collect();
            index.sort_unstable();
            index
        });
        let after = index.partition_point(|&(start, _)| start <= address);
        let before = index.get(..after)?.iter().rev().take(LABELS_WITHIN);
        let mut holding = before
            .filter_map(|&(_, i)| self.get(i))
            .filter(|symbol| symbol.symbol.range().contains(&address));
        let first = holding.next()?;
        // Of several names of one function, one that others know.
        let same = holding.take_while(|symbol| symbol.symbol.addr == first.symbol.addr);
        core::iter::once(first).chain(same).min_by_key(|symbol| (symbol.local, symbol.symbol.hidden))
    }
}

/// A name, and what is behind its first `@`.
fn split(full: &[u8]) -> (&[u8], Option<&[u8]>) {
    match full.iter().position(|&byte| byte == b'@') {
        Some(at) if at > 0 => (&full[..at], full.get(at + 1..)),
        _ => (full, None),
    }
}

/// FNV-1a. A hostile file can make names collide, and so a search as slow as one without an index.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
