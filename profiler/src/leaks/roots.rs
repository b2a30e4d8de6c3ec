//! What a process holds blocks by: its mappings, sorted into roots.
//!
//! | memory | root |
//! |---|---|
//! | of a module, writable, or made read-only once relocated | variables |
//! | a thread's stack, from the stack pointer up | stack; around the thread pointer, its variables and what libc keeps of the thread |
//! | what the program mapped itself, no file behind it | mapping, unless the policy leaves these out |
//! | in which the first thread's own variables lie | these, and the dynamic linker's |
//! | stacks that libc keeps of threads that have ended | only where the list of the thread's variables is |
//! | the rest: allocators' memory, cached stacks, files | none; where blocks may be older than the recording, all of it |
//!
//! The agent's memory, and what it shares with the command, is never looked through.

use super::maps::Map;
use super::registers::LOCALS;
use super::stop::Thread;
use grapnel_analysis::leaks::scan::{Register, RootRange, Roots};
use grapnel_analysis::leaks::{Memory, Recorded};
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
        .filter_map(|map| module_of(&map.range))
        .map(range_of)
        .collect();
    for (at, map) in maps.iter().enumerate() {
        if !map.readable || map.is_grapnels() || agents.iter().any(|own| own.contains(&map.range.start)) {
            continue;
        }
        if let Some(module) = module_of(&map.range) {
            if map.private && (map.writable || is_relocated(map, maps.get(at + 1))) {
                roots.ranges.push(RootRange {
                    range: map.range.clone(),
                    root: map.range.clone(),
                    kind: RootKind::Global,
                    thread: 0,
                    module: module.id,
                });
            }
        } else if map.writable {
            let kept = kept_descriptor(map, threads, memory);
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

/// Whether a mapping of a module, not writable, was so until it was relocated: it lies before the variables.
pub(super) fn is_relocated(map: &Map, next: Option<&Map>) -> bool {
    next.is_some_and(|next| {
        next.writable && !map.path.is_empty() && next.path == map.path && next.range.start == map.range.end
    })
}

/// A writable mapping that is no module's.
fn sort(
    roots: &mut Roots,
    recorded: &Recorded,
    map: &Map,
    threads: &[Thread],
    include: Include,
    (local_bytes, kept): (u64, Option<u64>),
) {
    // Where the variables of a thread and what libc keeps of it begin, and where they end.
    let (below, above) = LOCALS.reach(local_bytes, DESCRIPTOR);
    let variables = |thread: &Thread| thread.values.thread.saturating_sub(below);
    let end_of = |thread: &Thread| thread.values.thread.saturating_add(above);
    let range = &map.range;
    let mut push = |range: Range<u64>, root: Range<u64>, kind, thread| {
        if range.start < range.end {
            roots.ranges.push(RootRange { range, root, kind, thread, module: 0 });
        }
    };
    // Stacks, whether libc made them or the program did.
    let owner = threads.iter().find(|thread| range.contains(&thread.values.stack));
    let local = threads.iter().find(|thread| range.contains(&thread.values.thread));
    let is_main = map.path == "[stack]";
    match (owner, local) {
        (Some(owner), local) => {
            let from = owner.values.stack_end.max(range.start);
            // libc puts a thread's variables at the upper end of its stack.
            match local.filter(|local| local.id == owner.id) {
                None => push(from..range.end, range.clone(), RootKind::Stack, owner.id),
                Some(local) => {
                    let start = variables(local).clamp(from, range.end);
                    let end = end_of(local).min(range.end);
                    push(from..start, range.clone(), RootKind::Stack, owner.id);
                    push(start..end, start..end, RootKind::ThreadLocal, owner.id);
                }
            }
            return;
        }
        (None, Some(local)) if is_libcs_stack(map, local, threads) => {
            // It is elsewhere: on a stack for signals, or one of the program's own. Where on this one it was isn't known.
            push(range.clone(), range.clone(), RootKind::Stack, local.id);
            return;
        }
        _ if is_main => {
            let main = threads.iter().min_by_key(|thread| thread.id).map_or(0, |thread| thread.id);
            push(range.clone(), range.clone(), RootKind::Stack, main);
            return;
        }
        _ => {}
    }
    let mapped = |own: &Range<u64>| own.start < range.end && range.start < own.end;
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
    if recorded.mappings.iter().any(mapped) || !map.private || !map.is_anonymous() {
        return;
    }
    if let Some(start) = kept {
        let end = start.saturating_add(KEPT).min(range.end);
        push(start..end, start..end, RootKind::ThreadLocal, 0);
    }
    if let Some(local) = local {
        let kind = RootKind::ThreadLocal;
        if map.path == "[heap]" {
            // The variables of a program that brings its own loader lie at the heap's start.
            let from = variables(local).max(range.start);
            let end = end_of(local).min(range.end);
            push(from..end, from..end, kind, local.id);
        } else {
            let start = variables(local).max(range.start);
            push(start..range.end, start..range.end, kind, local.id);
            push(range.start..start, range.start..start, RootKind::Loader, 0);
            return;
        }
    }
    if include.before {
        push(range.clone(), range.clone(), RootKind::Before, 0);
    }
}

/// Of a thread that has ended, what is still in use: the first words, where the list of its variables is. What it returned is
/// nobody's any more.
const KEPT: u64 = 24;

/// More than libc keeps of a thread, which begins or ends at its thread pointer.
const DESCRIPTOR: u64 = 4096;

/// Where the descriptor begins of a thread that has ended, if a mapping is the stack that libc keeps of it for the next: the
/// list of the thread's variables, a block, goes with it. On x86-64 a descriptor begins with its own address, and has it again
/// two words further (glibc's `tcbhead_t`).
fn kept_descriptor(map: &Map, threads: &[Thread], memory: &mut impl Memory) -> Option<u64> {
    const ALIGNMENT: usize = 8;
    let is_in_use = |thread: &Thread| {
        map.range.contains(&thread.values.stack) || map.range.contains(&thread.values.thread)
    };
    if !map.private || !map.path.is_empty() || threads.iter().any(is_in_use) {
        return None;
    }
    let from = map.range.end.saturating_sub(2 * DESCRIPTOR).max(map.range.start);
    let mut words = vec![0; ((map.range.end - from) / 8) as usize];
    let read = memory.read(from, &mut words);
    let address = |place: usize| from + 8 * place as u64;
    let is_descriptor = |&place: &usize| words[place] == address(place) && words[place + 2] == address(place);
    (0..read.saturating_sub(2)).step_by(ALIGNMENT).find(is_descriptor).map(address)
}

/// Bytes of the variables that each thread has of its own, of all modules together, or somewhat more.
///
/// Of a module that came later they may lie in a block, to which the thread's descriptor leads.
fn local_bytes(modules: &[Module], memory: &mut impl Memory) -> u64 {
    /// Of ELF's 64-bit headers: words, and the type of such variables (`PT_TLS`).
    const HEADER: usize = 8;
    const PROGRAM_HEADER: usize = 7;
    const LOCAL: u64 = 7;
    let mut bytes = 0;
    for module in modules {
        let mut header = [0; HEADER];
        if memory.read(module.range.0, &mut header) < HEADER
            || header[0] as u32 != u32::from_le_bytes(*b"\x7fELF")
        {
            continue;
        }
        let (offset, count) = (header[4], header[7] as u16);
        let mut table = vec![0; PROGRAM_HEADER * usize::from(count)];
        let read = memory.read(module.range.0.saturating_add(offset), &mut table);
        for entry in
            table[..read].chunks_exact(PROGRAM_HEADER).filter(|entry| entry[0] as u32 as u64 == LOCAL)
        {
            let (size, alignment) = (entry[5], entry[6].clamp(1, 1 << 20));
            bytes += size.min(1 << 30).next_multiple_of(alignment.next_power_of_two()) + alignment;
        }
    }
    bytes
}

/// Whether a mapping in which a thread's variables lie is its stack too: not the first thread's, whose stack is another.
fn is_libcs_stack(map: &Map, local: &Thread, threads: &[Thread]) -> bool {
    let first = threads.iter().map(|thread| thread.id).min();
    map.path != "[heap]" && first != Some(local.id)
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
