//! An object that is loaded, as it lies in memory: no file is opened, which may be another one by now.

use super::super::native::{OF_SYMBOLS, THREAD_OFFSET};
use super::super::target::MapLine;
use super::{Unknown, View, half, word};
use std::ops::Range;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_TLS: u32 = 7;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const HEADER: usize = 56;
const PAGE: u64 = 4096;

const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_STRSZ: u64 = 10;
const SYMBOL: usize = 24;
const RELOCATION: usize = 24;

/// No object has larger tables, or more variables.
const LARGEST: u64 = 64 << 20;

/// What is known of it.
#[derive(Debug)]
pub(super) struct Object {
    /// How far from the addresses in its file it lies.
    pub(super) bias: u64,
    headers: Vec<Header>,
    dynamic: Dynamic,
    /// All of it, from the first of its mappings to the last.
    pub(super) image: Range<u64>,
    /// The file's name, without the folder.
    pub(super) name: String,
    /// Whether it is what the process runs, and no library.
    pub(super) is_program: bool,
}

#[derive(Debug)]
struct Header {
    kind: u32,
    flags: u32,
    address: u64,
    size: u64,
}

#[derive(Debug, Default)]
struct Dynamic {
    names: (u64, u64),
    symbols: u64,
    relocations: (u64, u64),
}

impl Object {
    /// The one whose first mapping this is.
    pub(super) fn at(view: View<'_>, first: &MapLine) -> Result<Self, Unknown> {
        let base = first.range.start;
        let mut head = [0; 4096];
        view.read(base, &mut head)?;
        let headers = headers(&head).ok_or(Unknown::Tables)?;
        let loads = || headers.iter().filter(|header| header.kind == PT_LOAD);
        let lowest = loads().map(|header| header.address).min().ok_or(Unknown::Tables)?;
        let bias = base.wrapping_sub(lowest & !(PAGE - 1));
        let end = loads().map(|header| header.range(bias).end).max().unwrap_or(base);
        let dynamic = headers.iter().find(|header| header.kind == PT_DYNAMIC).ok_or(Unknown::Tables)?;
        let dynamic = dynamic_of(&read(view, dynamic.range(bias))?);
        let path = first.name.strip_suffix(" (deleted)").unwrap_or(&first.name);
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let is_program = headers.iter().any(|header| header.kind == PT_INTERP);
        Ok(Self { bias, headers, dynamic, image: base..end, name, is_program })
    }

    /// The one that an address lies in.
    pub(super) fn around(view: View<'_>, maps: &[MapLine], address: u64) -> Result<Self, Unknown> {
        let own = maps.iter().find(|line| line.range.contains(&address)).filter(|line| line.inode != 0);
        let own = own.ok_or(Unknown::Tables)?;
        let first = maps.iter().find(|line| line.inode == own.inode && line.name == own.name);
        Self::at(view, first.ok_or(Unknown::Tables)?)
    }

    fn segments(&self, flags: u32, wanted: u32) -> impl Iterator<Item = Range<u64>> {
        let is_one = move |header: &&Header| header.kind == PT_LOAD && header.flags & flags == wanted;
        self.headers.iter().filter(is_one).map(|header| header.range(self.bias))
    }

    /// Its code.
    pub(super) fn text(&self) -> Result<Range<u64>, Unknown> {
        self.segments(PF_X, PF_X).next().ok_or(Unknown::Tables)
    }

    /// Its variables: what can be written to.
    pub(super) fn data(&self) -> Result<Range<u64>, Unknown> {
        let data = self.segments(PF_W, PF_W).next().ok_or(Unknown::Tables)?;
        if data.end - data.start > LARGEST { Err(Unknown::Tables) } else { Ok(data) }
    }

    /// What nobody writes to.
    pub(super) fn constants(&self) -> impl Iterator<Item = Range<u64>> {
        self.segments(PF_W, 0)
    }

    /// Where what each of its dynamic symbols stands for lies, and its name.
    fn symbols(&self, view: View<'_>) -> Result<(Vec<u8>, Vec<u8>), Unknown> {
        // The names follow the symbols: that is how many there are.
        let (symbols, names) = (self.located(self.dynamic.symbols), self.located(self.dynamic.names.0));
        let table = read(view, symbols..names)?;
        let names = read(view, names..names.saturating_add(self.dynamic.names.1))?;
        Ok((table, names))
    }

    /// Where the functions and variables of these names lie that it defines.
    pub(super) fn defined(&self, view: View<'_>, wanted: &[&[u8]]) -> Result<Vec<Range<u64>>, Unknown> {
        let (table, names) = self.symbols(view)?;
        let is_one = |symbol: &&[u8]| wanted.iter().any(|one| is_named(symbol, &names, one));
        let symbols = table.chunks_exact(SYMBOL).filter(is_one);
        let located = symbols.filter(|symbol| word(symbol, 8) != 0).map(|symbol| {
            let start = self.bias.wrapping_add(word(symbol, 8));
            start..start.saturating_add(word(symbol, 16))
        });
        Ok(located.collect())
    }

    /// The address that the loader has found for a function that it calls, or takes the address of.
    pub(super) fn bound(&self, view: View<'_>, name: &[u8]) -> Result<Option<u64>, Unknown> {
        let (table, names) = self.symbols(view)?;
        let is_one = |entry: &&[u8]| {
            let (kind, symbol) = (word(entry, 8) & 0xffff_ffff, (word(entry, 8) >> 32) as usize);
            let symbol = table.chunks_exact(SYMBOL).nth(symbol);
            kind == u64::from(OF_SYMBOLS[0].0) && symbol.is_some_and(|symbol| is_named(symbol, &names, name))
        };
        let relocations = self.relocations(view)?;
        let Some(entry) = relocations.chunks_exact(RELOCATION).find(is_one) else { return Ok(None) };
        let [address] = view.words(self.bias.wrapping_add(word(entry, 0)))?;
        Ok(Some(address))
    }

    fn relocations(&self, view: View<'_>) -> Result<Vec<u8>, Unknown> {
        let start = self.located(self.dynamic.relocations.0);
        read(view, start..start.saturating_add(self.dynamic.relocations.1))
    }

    /// Where each thread has its variables, by offsets from the thread pointer: the loader has written such offsets to the
    /// places that its relocations name.
    pub(super) fn thread_variables(&self, view: View<'_>) -> Result<Vec<u64>, Unknown> {
        let local = self.headers.iter().find(|header| header.kind == PT_TLS).ok_or(Unknown::Tables)?;
        let table = self.relocations(view)?;
        // Of no symbol.
        let own = table.chunks_exact(RELOCATION).find(|entry| word(entry, 8) == u64::from(THREAD_OFFSET));
        let own = own.ok_or(Unknown::Tables)?;
        let [offset] = view.words(self.bias.wrapping_add(word(own, 0)))?;
        let first = offset.wrapping_sub(word(own, 16));
        if local.size > 1 << 16 {
            return Err(Unknown::Tables);
        }
        Ok((0..local.size / 8).map(|index| first.wrapping_add(8 * index)).collect())
    }

    /// What the dynamic section says is an address by now, if the loader has put it there.
    fn located(&self, value: u64) -> u64 {
        if value >= self.image.start { value } else { self.bias.wrapping_add(value) }
    }
}

impl Header {
    fn range(&self, bias: u64) -> Range<u64> {
        let start = bias.wrapping_add(self.address);
        start..start.saturating_add(self.size)
    }
}

fn is_named(symbol: &[u8], names: &[u8], wanted: &[u8]) -> bool {
    let name = names.get(half(symbol, 0) as usize..).unwrap_or(&[]);
    name.starts_with(wanted) && name.get(wanted.len()) == Some(&0)
}

/// The program headers, of an object whose first bytes these are.
fn headers(head: &[u8]) -> Option<Vec<Header>> {
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let start = usize::try_from(word(head, 32)).ok()?;
    let count = usize::from(u16::from_le_bytes(*head.get(56..)?.first_chunk()?));
    let header = |index: usize| {
        let bytes = head.get(start.checked_add(index * HEADER)?..)?.get(..HEADER)?;
        Some(Header {
            kind: half(bytes, 0),
            flags: half(bytes, 4),
            address: word(bytes, 16),
            size: word(bytes, 40),
        })
    };
    (0..count).map(header).collect()
}

/// All of a range that isn't longer than any object has.
pub(super) fn read(view: View<'_>, range: Range<u64>) -> Result<Vec<u8>, Unknown> {
    let len = range.end.saturating_sub(range.start);
    if len > LARGEST {
        return Err(Unknown::Tables);
    }
    let mut bytes = vec![0; len as usize];
    view.read(range.start, &mut bytes)?;
    Ok(bytes)
}

fn dynamic_of(bytes: &[u8]) -> Dynamic {
    let mut found = Dynamic::default();
    for entry in bytes.chunks_exact(16) {
        let value = word(entry, 8);
        match word(entry, 0) {
            0 => break,
            DT_STRTAB => found.names.0 = value,
            DT_STRSZ => found.names.1 = value,
            DT_SYMTAB => found.symbols = value,
            DT_RELA => found.relocations.0 = value,
            DT_RELASZ => found.relocations.1 = value,
            _ => {}
        }
    }
    found
}
