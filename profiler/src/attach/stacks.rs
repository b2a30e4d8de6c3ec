//! Where the threads of a stopped process are and will come back to: their program counters, those that signals' frames
//! on their stacks hold, and the words of the stacks.

use super::book::Book;
use super::freeze::Frozen;
use super::memory::Memory;
use super::native::{RED_ZONE, Registers, interrupted};
use super::target::MapLine;
use super::working::is_borrowed;
use std::collections::HashSet;
use std::io;
use std::ops::Range;

/// The longest stack that is looked through; what lies deeper is older than any call that matters, or taken for being so
/// that it can't be told.
const LONGEST: u64 = 64 << 20;
/// The most stacks of a thread that are looked through: the program writes what stands there, and may have frames lead on
/// for ever.
const MOST: usize = 64;

/// The words of a stack, from what is in use of it to its end.
#[derive(Debug)]
struct Words {
    start: u64,
    words: Vec<u64>,
    /// Not all of it was read.
    cut: bool,
}

/// Visits the stacks of a thread: the one that it is on, and those that it was on when signals came. False if not all could
/// be seen.
fn each_stack(
    memory: &Memory,
    maps: &[MapLine],
    registers: &Registers,
    mut visit: impl FnMut(u64, &[u64]),
) -> bool {
    let mut seen: HashSet<u64> = HashSet::new();
    let mut open = vec![registers.stack_start()];
    let mut whole = true;
    let mut count = 0;
    while let Some(start) = open.pop() {
        count += 1;
        if count > MOST {
            return false;
        }
        let Some(words) = words(memory, maps, start) else {
            // No stack at all: a frame that only looked like one.
            whole &= start != registers.stack_start();
            continue;
        };
        whole &= !words.cut;
        visit(words.start, &words.words);
        let here = words.start..words.start + 8 * words.words.len() as u64;
        open.extend(
            interrupted(&words.words)
                .map(|frame| frame.sp)
                .filter(|sp| !here.contains(sp) && seen.insert(*sp)),
        );
    }
    whole
}

fn words(memory: &Memory, maps: &[MapLine], start: u64) -> Option<Words> {
    let index = maps.partition_point(|line| line.range.end <= start);
    let line = maps.get(index).filter(|line| line.range.start <= start && line.readable);
    // The red zone may reach below a stack's first page.
    let (start, end) = match line {
        Some(line) => (start, line.range.end),
        None => {
            let is_near =
                |line: &&MapLine| line.range.start.checked_sub(start).is_some_and(|below| below <= RED_ZONE);
            let above = maps.get(index).filter(is_near).filter(|line| line.readable)?;
            (above.range.start, above.range.end)
        }
    };
    let start = start.next_multiple_of(8);
    let len = end.saturating_sub(start).min(LONGEST);
    let mut bytes = vec![0; len as usize];
    let read = memory.read_some(start, &mut bytes);
    let words =
        bytes[..read].chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
    Some(Words { start, words: words.collect(), cut: (read as u64) < end - start })
}

/// Has all threads that stand inside of what was changed go on where the same is done. Signals' frames too.
pub(crate) fn move_out_of_edits(
    frozen: &mut Frozen,
    memory: &Memory,
    maps: &[MapLine],
    book: &Book,
) -> io::Result<()> {
    let way = |pc: u64| book.edit_at(pc).and_then(|edit| edit.way(pc));
    let mut moves = Vec::new();
    let mut frames = Vec::new();
    for (tid, registers) in frozen.registers() {
        moves.extend(way(registers.pc()).map(|to| (tid, to)));
        each_stack(memory, maps, registers, |start, words| {
            let found =
                interrupted(words).filter_map(|frame| Some((start + 8 * frame.index as u64, way(frame.pc)?)));
            frames.extend(found);
        });
    }
    for (tid, to) in moves {
        frozen.move_to(tid, to)?;
    }
    for (at, to) in frames {
        memory.write(at, &to.to_ne_bytes())?;
    }
    Ok(())
}

/// Whether any thread stands in a redirect that lies in padding: it can't be taken away under its feet.
pub(crate) fn in_padding(frozen: &Frozen, memory: &Memory, maps: &[MapLine], book: &Book) -> bool {
    let is_in = |pc: u64| book.edit_at(pc).is_some_and(super::book::Edit::is_padding);
    book.edits.iter().any(super::book::Edit::is_padding)
        && frozen.registers().any(|(_, registers)| {
            let mut found = is_in(registers.pc());
            let whole = each_stack(memory, maps, registers, |_, words| {
                found |= interrupted(words).any(|frame| is_in(frame.pc));
            });
            found || !whole
        })
}

/// How many threads are in the agent, or may come back to it.
pub(crate) fn inside(frozen: &Frozen, memory: &Memory, maps: &[MapLine], book: &Book) -> usize {
    let returns: HashSet<u64> =
        book.edits.iter().flat_map(|edit| edit.returns().collect::<Vec<_>>()).collect();
    let has_data = book.edits.iter().any(super::book::Edit::is_data);
    let leads_back = |word: &u64| book.stubs.contains(word) || returns.contains(word);
    let is_inside = |registers: &Registers| {
        let mut found = book.holds(registers.pc()) || book.holds(registers.sp());
        found |= is_borrowed(registers, memory);
        // A thread may have read the word that leads to the agent, and be about to follow it.
        found |= has_data && registers.values().iter().any(|value| image_of(book).contains(value));
        let whole = each_stack(memory, maps, registers, |_, words| {
            found |= words.iter().any(leads_back);
            found |= interrupted(words).any(|frame| book.holds(frame.pc));
        });
        found || !whole
    };
    frozen.registers().filter(|(_, registers)| is_inside(registers)).count()
}

/// The mapping that holds the stubs.
fn image_of(book: &Book) -> Range<u64> {
    let held = book.mappings.iter().find(|held| held.range.contains(&book.stubs.start));
    held.map_or(0..0, |held| held.range.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(range: Range<u64>, readable: bool) -> MapLine {
        MapLine { range, readable, executable: false, inode: 0, name: String::new() }
    }

    #[test]
    fn a_stack_that_cannot_be_read_is_none() {
        let memory = Memory::open(std::process::id()).unwrap();
        assert!(words(&memory, &[line(0x1000..0x3000, false)], 0x2000).is_none());
        assert!(words(&memory, &[line(0x3000..0x4000, true)], 0x2000).is_none());
        assert!(words(&memory, &[], u64::MAX - 1).is_none());
    }

    #[test]
    fn frames_that_lead_on_for_ever_are_not_followed_for_ever() {
        const STACK: u64 = 64;
        let memory = Memory::open(std::process::id()).unwrap();
        let seen = |stacks: u64| {
            let mut words = vec![0u64; 8 * stacks as usize + 2];
            let start = (words.as_ptr().addr() as u64).next_multiple_of(16);
            let first = (start as usize - words.as_ptr().addr()) / 8;
            let maps: Vec<_> =
                (0..stacks).map(|at| line(start + STACK * at..start + STACK * (at + 1), true)).collect();
            for at in 1..stacks as usize {
                let frame = first + 8 * (at - 1);
                (words[frame + 4], words[frame + 7]) = (start + STACK * at as u64, 0x33);
            }
            let mut registers = Registers::default();
            registers.call(0, start + RED_ZONE + 16, [0; 6]);
            let mut visited = 0;
            (each_stack(&memory, &maps, &registers, |_, _| visited += 1), visited)
        };
        assert_eq!(seen(10), (true, 10));
        assert_eq!(seen(200), (false, MOST));
    }
}
