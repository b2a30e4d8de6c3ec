//! What a program's file says that isn't mapped: of a static program where its functions are, which no loader has a list of.
//!
//! The file is the one that the process runs, whatever lies at its path now: it is opened through the kernel's own link to it,
//! `/proc/PID/exe`. The kernel lets nobody write to it meanwhile.

use grapnel_trace::attached::{FUNCTIONS, OTHER_FUNCTIONS};
use object::read::elf::{ElfFile64, ElfSymbol64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache, SymbolKind, elf};
use std::fs::File;
use std::ops::Range;

/// What only glibc's and musl's allocators have, by their names without what compilers put behind.
const ALLOCATORS: [&str; 4] = ["_int_malloc", "__libc_malloc_impl", "__simple_malloc", "__expand_heap"];
/// Functions of these that get memory from the kernel and give it back.
const OF_ALLOCATORS: [&str; 29] = [
    "_int_malloc",
    "_int_free",
    "_int_realloc",
    "_int_memalign",
    "sysmalloc",
    "sysmalloc_mmap",
    "sysmalloc_mmap_fallback",
    "systrim",
    "mtrim",
    "new_heap",
    "alloc_new_heap",
    "shrink_heap",
    "heap_trim",
    "arena_get2",
    "munmap_chunk",
    "mremap_chunk",
    "__libc_malloc_impl",
    "alloc_slot",
    "__malloc_alloc_meta",
    "__simple_malloc",
    "__expand_heap",
    "__libc_free",
    "__libc_realloc",
    "malloc",
    "calloc",
    "realloc",
    "free",
    "aligned_alloc",
    "memalign",
];
/// glibc gives back what it has kept for a thread in these.
const THREAD_ENDS: [&str; 2] = ["__malloc_arena_thread_freeres", "tcache_thread_shutdown"];
/// Functions of both that map and unmap stacks of threads, or move the break for others, by their names in all versions.
const OF_LIBC: [&str; 16] = [
    "sbrk",
    "__sbrk",
    "__glibc_morecore",
    "__default_morecore",
    "allocate_stack",
    "pthread_create",
    "__pthread_create_2_1",
    "__pthread_create",
    "__nptl_deallocate_stack",
    "__deallocate_stack",
    "__nptl_free_stacks",
    "__free_stacks",
    "__pthread_exit",
    "pthread_join",
    "__pthread_join",
    "__pthread_timedjoin_np",
];
/// Functions that are further apart are no neighbours.
const APART: u64 = 256 << 10;

/// A loader that was started by hand is no program of this kind.
const OF_LOADERS: [&str; 2] = ["_r_debug", "_dl_debug_addr"];

/// Where what is in the program. Of one that a loader has loaded that is no more than its call frame information.
#[derive(Debug)]
pub(crate) struct Linked {
    /// Each of [`FUNCTIONS`]; empty where it has none.
    functions: [Range<u64>; FUNCTIONS.len()],
    allocator: Range<u64>,
    others: Vec<Range<u64>>,
    thread_end: Range<u64>,
    frames: Range<u64>,
}

impl Default for Linked {
    fn default() -> Self {
        Self {
            functions: [const { 0..0 }; FUNCTIONS.len()],
            allocator: 0..0,
            others: vec![0..0; OTHER_FUNCTIONS],
            thread_end: 0..0,
            frames: 0..0,
        }
    }
}

/// What is amiss with a static program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacking {
    /// All of its symbols.
    Symbols,
    /// `malloc` and `free`.
    Heap,
}

/// Looks through the file of a program whose program headers lie at `headers`. Nothing for one that can't be made sense of.
pub(crate) fn look(file: File, headers: u64) -> Option<Result<Linked, Lacking>> {
    let cache = ReadCache::new(file);
    let header = elf::FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &cache).ok()?;
    let has = |kind| segments.iter().any(|segment| segment.p_type(endian) == kind);
    let (is_loaded, has_header) = (has(elf::PT_INTERP), has(elf::PT_GNU_EH_FRAME));
    // Nearly all are of this kind, and may be large.
    if is_loaded && has_header {
        return None;
    }
    let elf: ElfFile64<'_, Endianness, _> = ElfFile64::parse(&cache).ok()?;
    let is_loader = |symbol: ElfSymbol64<'_, '_, Endianness, _>| {
        symbol.name().is_ok_and(|name| OF_LOADERS.contains(&name))
    };
    if !is_loaded && elf.dynamic_symbols().any(is_loader) {
        return None;
    }
    let first = segments.iter().find(|s| s.p_type(endian) == elf::PT_LOAD && s.p_offset(endian) == 0)?;
    let start = headers.wrapping_sub(header.e_phoff(endian));
    let bias = start.wrapping_sub(first.p_vaddr(endian));
    // Linkers make no header of it for static programs, musl's for none.
    let frames = || elf.section_by_name(".eh_frame").filter(|_| !has_header);
    let frames = frames().map_or(0..0, |section| {
        let start = bias.wrapping_add(section.address());
        start..start.saturating_add(section.size())
    });
    if is_loaded {
        return Some(Ok(Linked { frames, ..Linked::default() }));
    }

    let mut found = Vec::new();
    for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
        if let Ok(name) = symbol.name()
            && symbol.kind() == SymbolKind::Text
            && symbol.is_definition()
            && symbol.size() != 0
        {
            let start = bias.wrapping_add(symbol.address());
            found.push(Function { name, range: start..start.saturating_add(symbol.size()) });
        }
    }
    if found.is_empty() {
        return Some(Err(Lacking::Symbols));
    }
    let by_name = |name: &str| found.iter().find(|function| function.name == name);
    let functions = FUNCTIONS.map(|name| by_name(name).map_or(0..0, |function| function.range.clone()));
    if by_name("malloc").is_none() || by_name("free").is_none() {
        return Some(Err(Lacking::Heap));
    }
    let is_known = found.iter().any(|function| ALLOCATORS.contains(&function.stem()));
    let allocator = if is_known { around(&found, &OF_ALLOCATORS) } else { 0..0 };
    let of_libc = found.iter().filter(|function| OF_LIBC.contains(&function.stem()));
    let mut others: Vec<_> = of_libc.map(|function| function.range.clone()).collect();
    others.sort_by_key(|range| range.start);
    others.dedup();
    others.resize(OTHER_FUNCTIONS, 0..0);
    Some(Ok(Linked { functions, allocator, others, thread_end: around(&found, &THREAD_ENDS), frames }))
}

struct Function<'f> {
    name: &'f str,
    range: Range<u64>,
}

impl<'f> Function<'f> {
    /// Its name without what compilers put behind that of a part of a function.
    fn stem(&self) -> &'f str {
        self.name.split('.').next().unwrap_or_default()
    }
}

/// From the first of these functions to the last, if they are neighbours.
fn around(all: &[Function<'_>], names: &[&str]) -> Range<u64> {
    let wanted = || all.iter().filter(|function| names.contains(&function.stem()));
    let start = wanted().map(|function| function.range.start).min().unwrap_or(0);
    let end = wanted().map(|function| function.range.end).max().unwrap_or(0);
    if end - start < APART { start..end } else { 0..0 }
}

impl Linked {
    /// As the agent's ledger has it.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let ranges = self.functions.iter().chain([&self.allocator]).chain(&self.others);
        let ranges = ranges.chain([&self.thread_end, &self.frames]);
        let words = ranges.flat_map(|range| [range.start, range.end - range.start]);
        words.flat_map(u64::to_ne_bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_one_object_are_neighbours_and_parts_of_them_count() {
        let function = |name, start| Function { name, range: start..start + 0x10 };
        let all = [
            function("_int_malloc", 0x1000),
            function("sysmalloc_mmap.constprop.0", 0x800),
            function("main", 0x10_0000),
            function("free", 0x2000),
        ];
        assert_eq!(around(&all, &OF_ALLOCATORS), 0x800..0x2010);
        assert_eq!(around(&all, &THREAD_ENDS), 0..0);
        assert_eq!(around(&all, &["main", "free"]), 0..0);
    }

    #[test]
    fn what_says_all_in_memory_and_what_is_no_program_is_not_looked_through() {
        for path in ["/proc/self/exe", "/proc/self/cmdline", "/dev/null"] {
            assert!(look(File::open(path).unwrap(), 0x40).is_none(), "{path}");
        }
    }

    #[test]
    fn the_ledger_has_room_for_all_of_it() {
        assert_eq!(Linked::default().to_bytes().len(), size_of::<grapnel_trace::attached::Linked>());
    }
}
