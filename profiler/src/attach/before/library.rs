//! The C library of a process, as it lies in memory: no file is opened, which may be another one by now.

use super::super::native::THREAD_OFFSET;
use super::super::target::MapLine;
use super::layout::Layout;
use super::{Unknown, View, half, word};
use std::ops::Range;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_TLS: u32 = 7;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const HEADER: usize = 56;

const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_STRSZ: u64 = 10;
const SYMBOL: usize = 24;
const RELOCATION: usize = 24;

/// No library has larger tables, or more variables.
const LARGEST: u64 = 64 << 20;

/// Functions of the file of glibc's that has `malloc`: what lies between them is of that file too.
const FAMILY: [&[u8]; 15] = [
    b"malloc",
    b"free",
    b"calloc",
    b"realloc",
    b"memalign",
    b"aligned_alloc",
    b"posix_memalign",
    b"valloc",
    b"pvalloc",
    b"malloc_trim",
    b"malloc_usable_size",
    b"mallinfo",
    b"mallopt",
    b"malloc_stats",
    b"malloc_info",
];
/// How much of that file's code lies before the first of them, at most: functions that aren't exported.
const BEFORE: u64 = 0x3800;

/// What is known of it.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) layout: Layout,
    /// All of it, from the first of its mappings to the last.
    pub(super) image: Range<u64>,
    /// Its variables: those that can be written to.
    data: Range<u64>,
    /// All of its code.
    pub(super) text: Range<u64>,
    /// The code of `malloc` and its kin.
    pub(super) malloc: Range<u64>,
    /// Where threads have variables of the library's, by offsets from the thread pointer.
    pub(super) thread_variables: Vec<u64>,
}

#[derive(Debug, Default)]
struct Dynamic {
    names: (u64, u64),
    symbols: u64,
    relocations: (u64, u64),
}

impl Library {
    pub(super) fn find(view: View<'_>, maps: &[MapLine]) -> Result<Self, Unknown> {
        let is_library = |line: &&MapLine| line.inode != 0 && is_glibc(&line.name);
        let base = maps.iter().find(is_library).ok_or(Unknown::NoLibrary)?.range.start;
        let mut head = [0; 4096];
        view.read(base, &mut head)?;
        let headers = headers(&head).ok_or(Unknown::Tables)?;
        let at = |address: u64| base.wrapping_add(address);
        let load = |flags: u32| {
            headers.iter().find(|header| header.kind == PT_LOAD && header.flags & flags == flags)
        };
        let range = |header: &Header| at(header.address)..at(header.address).saturating_add(header.size);
        let ends = headers.iter().filter(|header| header.kind == PT_LOAD).map(|header| range(header).end);
        let image = base..ends.max().unwrap_or(base);
        let data = load(PF_W).map(range).ok_or(Unknown::Tables)?;
        let text = load(PF_X).map(range).ok_or(Unknown::Tables)?;
        let dynamic = headers.iter().find(|header| header.kind == PT_DYNAMIC).ok_or(Unknown::Tables)?;
        let dynamic = dynamic_of(&read(view, range(dynamic))?);
        let layout = version(view, &headers, base)?;
        let malloc = functions(view, &dynamic, base)?;
        let local = headers.iter().find(|header| header.kind == PT_TLS).ok_or(Unknown::Tables)?;
        let thread_variables = thread_variables(view, &dynamic, base, local.size)?;
        if data.end - data.start > LARGEST {
            return Err(Unknown::Tables);
        }
        Ok(Self { layout, image, data, text, malloc, thread_variables })
    }

    /// All of its variables, and where they lie.
    pub(super) fn data(&self, view: View<'_>) -> Result<(u64, Vec<u8>), Unknown> {
        let start = self.data.start.next_multiple_of(8);
        Ok((start, read(view, start..self.data.end)?))
    }
}

/// Whether a mapped file is glibc. Until 2.33 `libc.so.6` was a link to a file that has its version in its name; and who goes on
/// after an upgrade has the one of before, whose name is gone.
fn is_glibc(path: &str) -> bool {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_version = |text: &str| text.starts_with("2.") && text.ends_with(".so");
    path.starts_with('/') && (name == "libc.so.6" || name.strip_prefix("libc-").is_some_and(is_version))
}

#[derive(Debug)]
struct Header {
    kind: u32,
    flags: u32,
    address: u64,
    size: u64,
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

fn read(view: View<'_>, range: Range<u64>) -> Result<Vec<u8>, Unknown> {
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

/// The 36 of "... stable release version 2.36.", which the library prints when it is run.
fn version(view: View<'_>, headers: &[Header], base: u64) -> Result<Layout, Unknown> {
    const BANNER: &[u8] = b"GNU C Library (";
    const VERSION: &[u8] = b" release version ";
    let constant = headers.iter().filter(|header| header.kind == PT_LOAD && header.flags & PF_W == 0);
    for header in constant {
        let start = base.wrapping_add(header.address);
        let bytes = read(view, start..start.saturating_add(header.size))?;
        let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|found| found == what);
        let Some(banner) = find(&bytes, BANNER).map(|at| &bytes[at..]) else { continue };
        let line = &banner[..banner.len().min(256)];
        let Some(at) = find(line, VERSION) else { continue };
        let text = String::from_utf8_lossy(&line[at + VERSION.len()..]);
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
        let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else { break };
        let layout = Layout::of(minor).filter(|_| major == 2);
        return layout.ok_or(Unknown::Version { major, minor });
    }
    Err(Unknown::Tables)
}

/// From the first to the last function of the family, and a little before.
fn functions(view: View<'_>, dynamic: &Dynamic, base: u64) -> Result<Range<u64>, Unknown> {
    // The names follow the symbols: that is how many there are.
    let (symbols, names) = (located(base, dynamic.symbols), located(base, dynamic.names.0));
    let table = read(view, symbols..names)?;
    let names = read(view, names..names.saturating_add(dynamic.names.1))?;
    let is_one = |symbol: &&[u8]| {
        let name = names.get(half(symbol, 0) as usize..).unwrap_or(&[]);
        FAMILY.iter().any(|one| name.starts_with(one) && name.get(one.len()) == Some(&0))
    };
    let found: Vec<Range<u64>> = table
        .chunks_exact(SYMBOL)
        .filter(is_one)
        .map(|symbol| word(symbol, 8)..word(symbol, 8).saturating_add(word(symbol, 16)))
        .filter(|range| range.start != 0)
        .collect();
    let start = found.iter().map(|range| range.start).min().ok_or(Unknown::Tables)?;
    let end = found.iter().map(|range| range.end).max().ok_or(Unknown::Tables)?;
    Ok(base.wrapping_add(start.saturating_sub(BEFORE))..base.wrapping_add(end))
}

/// Where each thread has the library's variables: the loader has written the offsets to the places that its relocations name.
fn thread_variables(view: View<'_>, dynamic: &Dynamic, base: u64, size: u64) -> Result<Vec<u64>, Unknown> {
    let start = located(base, dynamic.relocations.0);
    let table = read(view, start..start.saturating_add(dynamic.relocations.1))?;
    // Of no symbol.
    let own = table.chunks_exact(RELOCATION).find(|entry| word(entry, 8) == u64::from(THREAD_OFFSET));
    let own = own.ok_or(Unknown::Tables)?;
    let [offset] = view.words(base.wrapping_add(word(own, 0)))?;
    let first = offset.wrapping_sub(word(own, 16));
    if size > 1 << 16 {
        return Err(Unknown::Tables);
    }
    Ok((0..size / 8).map(|index| first.wrapping_add(8 * index)).collect())
}

/// What the dynamic section says is an address by now, if the loader has put it there.
fn located(base: u64, value: u64) -> u64 {
    if value >= base { value } else { base.wrapping_add(value) }
}

#[cfg(test)]
mod tests {
    use super::is_glibc;

    #[test]
    fn glibc_is_known_by_each_name_that_it_had() {
        for path in [
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
            "/usr/lib/x86_64-linux-gnu/libc.so.6 (deleted)",
            "/lib/x86_64-linux-gnu/libc-2.31.so",
            "/lib64/libc-2.17.so (deleted)",
        ] {
            assert!(is_glibc(path), "{path}");
        }
        for path in
            ["/lib/libc.so", "/lib/libcap.so.2", "/lib/libc-client.so.2007e", "libc.so.6", "[heap]", ""]
        {
            assert!(!is_glibc(path), "{path}");
        }
    }
}
