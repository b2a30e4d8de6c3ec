//! What a process holds blocks by: its mappings, sorted into roots.
//!
//! | memory | root |
//! |---|---|
//! | of a module, writable, or made read-only once relocated or later | variables |
//! | a thread's stack, from the stack pointer up | stack; around the thread pointer, its variables and what libc keeps of the thread |
//! | a stack that lies in a block | none: the block is held by the thread's pointers into it |
//! | what the program mapped itself, no file behind it, also made read-only | mapping, unless the policy leaves these out |
//! | in which the first thread's own variables lie | these, and the dynamic linker's |
//! | stacks that libc keeps of threads that have ended | only where the list of the thread's variables is |
//! | the rest: allocators' memory, cached stacks, files | none; where blocks may be older than the recording, all of it |
//!
//! The agent's memory, and what it shares with the command, is never looked through.

use super::maps::Map;
use super::registers::{LOCALS, Locals};
use super::stop::Thread;
use grapnel_analysis::leaks::blocks::Blocks;
use grapnel_analysis::leaks::scan::{Register, RootRange, Roots};
use grapnel_analysis::leaks::{Memory, Recorded, Width};
use grapnel_trace::Module;
use grapnel_trace::leaks::RootKind;
use std::ops::Range;

/// What of it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Include {
    /// Memory that the program mapped itself.
    pub(crate) mappings: bool,
    /// There are blocks that are older than the recording.
    pub(crate) before: bool,
}

/// Sorts a process's memory.
pub(crate) fn roots(
    recorded: &Recorded,
    maps: &[Map],
    threads: &[Thread],
    include: Include,
    memory: &mut impl Memory,
) -> Roots {
    let mut roots = Roots::default();
    let local_bytes = local_bytes(&recorded.modules, memory);
    let module_of = |range: &Range<u64>| -> Option<&Module> {
        // Where two claim a place the later one has it.
        let is_within = |module: &&Module| module.range.0 <= range.start && range.end <= module.range.1;
        recorded.modules.iter().rev().find(is_within)
    };
    let maps = cut(maps, recorded);
    let agents: Vec<Range<u64>> = maps
        .iter()
        .filter(|map| map.is_grapnels())
        // Other memory of the agent's may lie in the gaps of any module.
        .filter_map(|map| module_of(&map.range).filter(|module| module.range.0 == map.range.start))
        .map(range_of)
        .collect();
    // So may what the dynamic linker maps for the first thread's variables.
    let first = threads.iter().min_by_key(|thread| thread.id).map(|thread| thread.values.thread);
    let is_local = |map: &Map| map.path.is_empty() && first.is_some_and(|at| map.range.contains(&at));
    for (at, map) in maps.iter().enumerate() {
        if !map.readable || map.is_grapnels() || agents.iter().any(|own| own.contains(&map.range.start)) {
            continue;
        }
        if let Some(module) = module_of(&map.range).filter(|_| !is_local(map)) {
            if map.private && (map.writable || was_writable(&maps, at)) {
                roots.ranges.push(RootRange {
                    range: map.range.clone(),
                    root: map.range.clone(),
                    kind: RootKind::Global,
                    thread: 0,
                    module: module.id,
                });
            }
        } else if map.writable || map.is_anonymous() || map.is_shared_memory() {
            let kept = kept_list(map, threads, &recorded.blocks, local_bytes, memory);
            sort(&mut roots, recorded, map, threads, include, (local_bytes, kept));
        }
    }
    roots.modules = recorded.modules.iter().map(range_of).collect();
    let is_libc = |module: &&Module| {
        let name = module.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        name.starts_with(b"libc.so") || name.starts_with(b"libc-2.")
    };
    roots.allocators = recorded.modules.iter().filter(is_libc).map(|module| module.id).collect();
    for thread in threads {
        registers(&mut roots, thread);
    }
    roots
}

fn range_of(module: &Module) -> Range<u64> {
    module.range.0..module.range.1
}

/// The same mappings, cut where modules begin and end, and what the program has mapped: the zeroed end of a module's
/// variables and memory behind it may be one mapping, and so may a stack and what lies beside it.
fn cut(maps: &[Map], recorded: &Recorded) -> Vec<Map> {
    let modules = recorded.modules.iter().flat_map(|module| [module.range.0, module.range.1]);
    let mapped = recorded.mappings.iter().flat_map(|mapping| [mapping.start, mapping.end]);
    let mut ends: Vec<u64> = modules.chain(mapped).collect();
    ends.sort_unstable();
    let mut cut = Vec::with_capacity(maps.len());
    for map in maps {
        let mut rest = map.range.clone();
        let first = ends.partition_point(|&end| end <= rest.start);
        for &end in ends[first..].iter().take_while(|&&end| end < map.range.end) {
            if end > rest.start {
                cut.push(Map { range: rest.start..end, ..map.clone() });
                rest.start = end;
            }
        }
        cut.push(Map { range: rest, ..map.clone() });
    }
    cut
}

/// Whether a mapping that can't be written to could be once: of a module what was relocated, or what the program has made
/// read-only since. It lies before or behind what can still be written, or between more of its file and the zeroed end of the
/// variables. A file that is only read is one mapping, often right below another one's memory: it may be large, and was never
/// written to.
pub(super) fn was_writable(maps: &[Map], at: usize) -> bool {
    let map = &maps[at];
    if map.is_anonymous() {
        return map.private;
    }
    if !map.private || !map.path.starts_with('/') {
        return false;
    }
    let next = maps.get(at + 1).filter(|next| next.range.start == map.range.end);
    let before = at.checked_sub(1).map(|at| &maps[at]).filter(|before| before.range.end == map.range.start);
    let before = before.filter(|before| before.path == map.path);
    let is_beside = |other: &Map| other.writable && other.path == map.path;
    next.is_some_and(|next| is_beside(next) || next.is_anonymous() && before.is_some())
        || before.is_some_and(is_beside)
}

/// A mapping that is no module's.
fn sort(
    roots: &mut Roots,
    recorded: &Recorded,
    map: &Map,
    threads: &[Thread],
    include: Include,
    (local_bytes, kept): (u64, Option<Range<u64>>),
) {
    // Where the variables of a thread and what libc keeps of it begin, and where they end.
    let (below, above) = LOCALS.reach(local_bytes, DESCRIPTOR);
    let variables_of = |thread: &Thread| thread.values.thread.saturating_sub(below);
    let end_of = |thread: &Thread| thread.values.thread.saturating_add(above);
    let range = &map.range;
    let mut push = |range: Range<u64>, root: Range<u64>, kind, thread| {
        if range.start < range.end {
            roots.ranges.push(RootRange { range, root, kind, thread, module: 0 });
        }
    };
    let mapped = |own: &Range<u64>| own.start < range.end && range.start < own.end;
    let is_own = recorded.mappings.iter().any(mapped);
    // What lies in a block is held by the thread's pointers into it.
    let lies_here = |address: u64| range.contains(&address) && recorded.blocks.find(address).is_none();
    let first = threads.iter().map(|thread| thread.id).min();
    let of_first = threads.iter().find(|thread| Some(thread.id) == first && lies_here(thread.values.thread));
    let mut stacks: Vec<StackHere> = Vec::new();
    for thread in threads {
        let has_variables =
            lies_here(thread.values.thread) && map.path != "[heap]" && first != Some(thread.id);
        let stack = lies_here(thread.values.stack).then(|| thread.values.stack_end.max(range.start));
        let end = end_of(thread).min(range.end);
        let here = |stack, variables| StackHere { thread: thread.id, stack, variables };
        // libc puts a thread's variables at the upper end of its stack. What it is on above that is another one.
        let own_stack = stack.filter(|&from| !has_variables || from <= end);
        if has_variables {
            let start = variables_of(thread).clamp(own_stack.unwrap_or(range.start), end);
            stacks.push(here(own_stack, Some(start..end)));
        }
        if let Some(other) = stack.filter(|_| !has_variables || own_stack.is_none()) {
            stacks.push(here(Some(other), None));
        }
    }
    if !stacks.is_empty() {
        let is_mapping = is_own && include.mappings;
        push_stacks(&mut stacks, range, is_mapping, &mut push);
    } else if map.path == "[stack]" {
        push(range.clone(), range.clone(), RootKind::Stack, first.unwrap_or(0));
        return;
    }
    if !stacks.is_empty() && of_first.is_none() {
        return;
    }
    for own in recorded.mappings.iter().filter(|own| mapped(own)) {
        if include.mappings {
            let part = own.start.max(range.start)..own.end.min(range.end);
            push(part.clone(), part, RootKind::Mapping, 0);
        }
    }
    // Of a process that ran already, what is a module's may not be known yet.
    if include.before && map.private && !map.is_anonymous() {
        return push(range.clone(), range.clone(), RootKind::Before, 0);
    }
    // What is left of the dynamic linker's last page, whose file is behind that, may have the first thread's variables.
    if is_own || !map.private || (!map.is_anonymous() && of_first.is_none()) {
        return;
    }
    if let Some(kept) = kept {
        push(kept.clone(), kept, RootKind::ThreadLocal, 0);
    }
    if let Some(local) = of_first {
        let kind = RootKind::ThreadLocal;
        let start = variables_of(local).max(range.start);
        if map.path == "[heap]" {
            // The variables of a program that brings its own loader lie at the heap's start.
            let end = end_of(local).min(range.end);
            push(start..end, start..end, kind, local.id);
        } else {
            push(start..range.end, start..range.end, kind, local.id);
            push(range.start..start, range.start..start, RootKind::Loader, 0);
            return;
        }
    }
    if include.before {
        push(range.clone(), range.clone(), RootKind::Before, 0);
    }
}

/// A thread's stack, or its variables, in a mapping that may have several of them: threads without guard pages, and stacks
/// that the program has cut out of one mapping.
struct StackHere {
    thread: u32,
    /// From where on it is in use; `None` when the thread is on another one, for signals or one of the program's own.
    stack: Option<u64>,
    /// What libc has put at its upper end; `None` when it is no stack that libc knows.
    variables: Option<Range<u64>>,
}

impl StackHere {
    fn place(&self) -> u64 {
        self.stack.or(self.variables.as_ref().map(|variables| variables.start)).unwrap_or(0)
    }
}

/// The roots of a mapping with stacks in it. `is_mapping`: what else is in it counts too, as far as it isn't known to be the
/// unused part of a stack.
fn push_stacks(
    stacks: &mut [StackHere],
    range: &Range<u64>,
    is_mapping: bool,
    push: &mut impl FnMut(Range<u64>, Range<u64>, RootKind, u32),
) {
    stacks.sort_by_key(StackHere::place);
    let mut end = range.start;
    for (at, here) in stacks.iter().enumerate() {
        let is_last = at + 1 == stacks.len();
        match (here.stack, here.variables.clone()) {
            (Some(from), Some(variables)) => {
                push(from..variables.start, range.clone(), RootKind::Stack, here.thread);
                push(variables.clone(), variables.clone(), RootKind::ThreadLocal, here.thread);
                end = variables.end;
            }
            (Some(from), None) => {
                // Where it ends isn't known, nor where it begins: below may be those of others that wait.
                push(from..range.end, range.clone(), RootKind::Stack, here.thread);
                if is_mapping {
                    push(end..from, end..from, RootKind::Mapping, 0);
                }
                end = range.end;
            }
            (None, Some(variables)) => {
                // Where on this one it was isn't known.
                let to = if is_last { range.end } else { variables.end };
                push(end..to, range.clone(), RootKind::Stack, here.thread);
                end = to;
            }
            (None, None) => {}
        }
    }
    if is_mapping {
        push(end..range.end, end..range.end, RootKind::Mapping, 0);
    }
}

/// More than libc keeps of a thread, which begins or ends at its thread pointer.
const DESCRIPTOR: u64 = 4096;

/// What is still in use of a thread that has ended, if a mapping is the stack that libc keeps of it for the next: the word by which
/// it knows the list of the thread's variables, a block, which goes with the stack. What it returned is nobody's any more.
fn kept_list(
    map: &Map,
    threads: &[Thread],
    blocks: &Blocks,
    local_bytes: u64,
    memory: &mut impl Memory,
) -> Option<Range<u64>> {
    let is_in_use = |thread: &Thread| {
        map.range.contains(&thread.values.stack) || map.range.contains(&thread.values.thread)
    };
    if !map.private || !map.path.is_empty() || threads.iter().any(is_in_use) {
        return None;
    }
    let (below, above) = LOCALS.reach(local_bytes, DESCRIPTOR);
    // Whole pages: descriptors are aligned.
    let reach = below.saturating_add(above).next_multiple_of(DESCRIPTOR);
    let from = map.range.end.saturating_sub(reach).max(map.range.start);
    let width = memory.width().bytes();
    let mut words = vec![0; ((map.range.end - from) / width) as usize];
    let read = memory.read(from, &mut words);
    let words = &words[..read];
    let at = match LOCALS {
        Locals::Below => list_in_descriptor(words, from, width),
        Locals::Above(_) => {
            words.iter().step_by(2).position(|&word| is_list(word, blocks, memory)).map(|at| 2 * at)
        }
    }?;
    let start = from + width * at as u64;
    Some(start..start + width)
}

/// Behind what a descriptor begins with on x86-64: its own address, which it has again two words further (glibc's `tcbhead_t`).
fn list_in_descriptor(words: &[u64], from: u64, width: u64) -> Option<usize> {
    let address = |place: usize| from + width * place as u64;
    let is_descriptor = |&place: &usize| words[place] == address(place) && words[place + 2] == address(place);
    (0..words.len().saturating_sub(2)).step_by(8).find(is_descriptor).map(|place| place + 1)
}

/// Whether an address is that of a list of variables: behind the first entry, which says how many there are besides it and another
/// (glibc's `dtv_t`). Elsewhere than on x86-64 nothing else tells where a descriptor is.
fn is_list(address: u64, blocks: &Blocks, memory: &mut impl Memory) -> bool {
    let entry = 2 * memory.width().bytes();
    let start = address.wrapping_sub(entry);
    let block = blocks.find(start).and_then(|number| blocks.all().get(number as usize));
    let Some(block) = block.filter(|block| block.address == start) else { return false };
    let mut count = [0];
    memory.read(start, &mut count) == 1
        && count[0].checked_add(2).and_then(|all| all.checked_mul(entry)) == Some(block.size)
}

/// Where ELF's headers have what is asked of them, in words of their width (elf(5)).
struct Headers {
    /// So many words of the file's header are read.
    header: usize,
    /// Of these, where the table of program headers is, and, in its lower half, how many there are.
    table: usize,
    count: usize,
    /// Words of a program header, of which the first has the type in it.
    entry: usize,
    /// Of these, how many bytes it is of in memory, and at multiples of what they lie.
    size: usize,
    alignment: usize,
}

impl Headers {
    const fn of(width: Width) -> Self {
        match width {
            Width::Bits32 => Self { header: 12, table: 7, count: 11, entry: 8, size: 5, alignment: 7 },
            Width::Bits64 => Self { header: 8, table: 4, count: 7, entry: 7, size: 5, alignment: 6 },
        }
    }
}

/// Bytes of the variables that each thread has of its own, of all modules together, or somewhat more.
///
/// Of a module that came later they may lie in a block, to which the thread's descriptor leads.
fn local_bytes(modules: &[Module], memory: &mut impl Memory) -> u64 {
    /// The type of such variables (`PT_TLS`).
    const LOCAL: u32 = 7;
    let headers = Headers::of(memory.width());
    let mut bytes = 0;
    for module in modules {
        let mut header = vec![0; headers.header];
        if memory.read(module.range.0, &mut header) < headers.header
            || header[0] as u32 != u32::from_le_bytes(*b"\x7fELF")
        {
            continue;
        }
        let (offset, count) = (header[headers.table], header[headers.count] as u16);
        let mut table = vec![0; headers.entry * usize::from(count)];
        let read = memory.read(module.range.0.saturating_add(offset), &mut table);
        for entry in table[..read].chunks_exact(headers.entry).filter(|entry| entry[0] as u32 == LOCAL) {
            let (size, alignment) = (entry[headers.size], entry[headers.alignment].clamp(1, 1 << 20));
            bytes += size.min(1 << 30).next_multiple_of(alignment.next_power_of_two()) + alignment;
        }
    }
    bytes
}

fn registers(roots: &mut Roots, thread: &Thread) {
    let values = &thread.values;
    let register = |name, value| Register { thread: thread.id, name, value, anywhere: false };
    roots.registers.extend(values.general.iter().map(|&(name, value)| register(name, value)));
    roots.registers.extend(values.vectors.iter().map(|&value| register("a vector register", value)));
    // A stack that lies in a block.
    let anywhere = |name, value| Register { anywhere: true, ..register(name, value) };
    roots.registers.push(anywhere("the stack pointer", values.stack));
    roots.registers.push(anywhere("the thread pointer", values.thread));
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_analysis::leaks::blocks::Block;

    /// Words of a width from an address on.
    struct Words(Width, u64, Vec<u64>);

    impl Memory for Words {
        fn width(&self) -> Width {
            self.0
        }

        fn present(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
            vec![range]
        }

        fn read(&mut self, address: u64, words: &mut [u64]) -> usize {
            let from = (address.wrapping_sub(self.1) / self.0.bytes()) as usize;
            let read = self.2.iter().skip(from).take(words.len());
            words.iter_mut().zip(read).map(|(to, word)| *to = *word).count()
        }
    }

    #[test]
    fn a_list_of_variables_is_known_by_how_long_it_is() {
        let block = |address, size| Block { address, size, stack: 0 };
        for width in [Width::Bits32, Width::Bits64] {
            let entry = 2 * width.bytes();
            let blocks = Blocks::new(vec![block(0x1000, 18 * entry), block(0x2000, 18 * entry)]);
            let mut memory = Words(width, 0x1000, vec![16, 0, 1, 0]);
            assert!(is_list(0x1000 + entry, &blocks, &mut memory));
            for other in [0, 8, 0x1000, 0x1008 + entry, 0x2000 + entry, 0x9010] {
                assert!(!is_list(other, &blocks, &mut memory), "{other:x}");
            }
        }
        let descriptor = [0, 0, 0, 0, 0, 0, 0, 0, 0x5040, 0x1010, 0x5040, 0, 0];
        assert_eq!(list_in_descriptor(&descriptor, 0x5000, 8), Some(9));
        assert_eq!(list_in_descriptor(&descriptor, 0x6000, 8), None);
        assert_eq!(list_in_descriptor(&descriptor[..10], 0x5000, 8), None);
    }

    #[test]
    fn variables_of_threads_are_counted_from_headers_of_either_width() {
        let magic = u64::from(u32::from_le_bytes(*b"\x7fELF"));
        let module = |start| Module { range: (start, start + 0x1000), ..Module::default() };
        let counted = |width: Width, words: Vec<u64>| {
            let mut memory = Words(width, 0x1000, words);
            // The other has nothing that can be read.
            local_bytes(&[module(0x1000), module(0x9000)], &mut memory)
        };
        // Two program headers right behind the file's, of which the second is of variables: 100 bytes at a multiple of 16.
        let narrow_header = [magic, 0, 0, 0, 3 | 40 << 16, 1, 0, 48, 0, 0, 52 | 32 << 16, 2 | 40 << 16];
        let narrow = |kind: u64| [&narrow_header[..], &[1; 8], &[kind, 0, 0, 0, 4, 100, 4, 16]].concat();
        assert_eq!(counted(Width::Bits32, narrow(7)), 112 + 16);
        assert_eq!(counted(Width::Bits32, narrow(6)), 0);
        let wide_header = [magic | 2 << 32, 0, 3 | 183 << 16, 0, 64, 0, 64 << 32, 2 << 48 | 2];
        let wide = |kind: u64| [&wide_header[..], &[1; 7], &[kind | 4 << 32, 0, 0, 0, 4, 100, 16]].concat();
        assert_eq!(counted(Width::Bits64, wide(7)), 112 + 16);
        assert_eq!(counted(Width::Bits64, wide(6)), 0);
        assert_eq!(counted(Width::Bits64, vec![0; 30]), 0);
    }

    /// Mappings side by side, each of a page: its rights and its path.
    fn maps(of: &[(&str, &str)]) -> Vec<Map> {
        let map = |(start, (rights, path)): (u64, &(&str, &str))| Map {
            range: start << 12..(start + 1) << 12,
            readable: rights.starts_with('r'),
            writable: rights.contains('w'),
            private: rights.ends_with('p'),
            path: (*path).to_owned(),
        };
        (1..).zip(of).map(map).collect()
    }

    #[test]
    fn what_was_written_to_once_is_told_from_what_is_only_read() {
        let was = |of: &[(&str, &str)], at: usize| was_writable(&maps(of), at);
        let module =
            [("r--p", "/m"), ("r-xp", "/m"), ("r--p", "/m"), ("r--p", "/m"), ("rw-p", "/m"), ("rw-p", "")];
        assert_eq!([0, 1, 2, 3].map(|at| was(&module, at)), [false, false, false, true]);
        // All that was initialized is read-only by now, and the zeroed end is not, or all of it is.
        assert!(was(&[("r-xp", "/m"), ("r--p", "/m"), ("rw-p", "")], 1));
        assert!(was(&[("r-xp", "/m"), ("r--p", "/m"), ("r--p", "")], 2));
        // The end of the variables is.
        assert!(was(&[("rw-p", "/m"), ("r--p", "/m")], 1));
        // Files that are read, where the kernel often puts them.
        assert!(!was(&[("r--p", "/data"), ("rw-p", "")], 0));
        assert!(!was(&[("r--p", "/data"), ("rw-p", "/m")], 0));
        assert!(!was(&[("r--s", "/data"), ("rw-s", "/data")], 0));
        assert!(!was(&[("r--p", "/other"), ("r--p", "/data"), ("rw-p", "")], 1));
    }
}
