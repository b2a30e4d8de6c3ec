//! Where the threads of a stopped process are and will come back to: their program counters, those that signals' frames
//! on their stacks hold, and the words of the stacks.

use super::book::Book;
use super::freeze::Frozen;
use super::memory::Memory;
use super::native::{FRAME_WORDS, LONGEST_CALL, RED_ZONE, Registers, address, interrupted, is_left_by_stub};
use super::target::MapLine;
use super::working::is_borrowed;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::ops::Range;

/// The most that is read of all stacks together, in bytes. What lies deeper in still larger ones is taken for being so that it
/// can't be told.
const MOST_BYTES: u64 = 1 << 30;
/// The most stacks that are looked through, for each thread: the program writes what stands there, and may have frames lead on
/// for ever.
const MOST: usize = 64;
/// How much is read at a time, in bytes.
const PIECE: u64 = 1 << 18;
/// Of how many pages the kernel is asked at a time.
const PAGES: u64 = 1 << 15;
const PAGE: u64 = 4096;

/// Reads stacks, each byte once.
///
/// Threads may have their stacks in one large mapping, as fibres have: nothing there says where one ends, so that each is read up
/// to the mapping's end, or to where another's begins that was read before. What a program has never touched isn't read.
struct Reader<'a> {
    memory: &'a Memory,
    maps: &'a [MapLine],
    /// What was read, by where it begins: where it ends.
    read: BTreeMap<u64, u64>,
    /// How many more bytes may be read, and how many more stacks.
    left: u64,
    stacks: usize,
    bytes: Vec<u8>,
    words: Vec<u64>,
}

/// Visits the stacks of threads: the one that each is on, and those that it was on when signals came. They come in pieces, with
/// the number of the thread, in which a signal's frame is whole. Says of each thread whether all could be seen; what lies above the
/// stack of another in the same mapping is told of that one only.
fn each_stack<'r>(
    memory: &Memory,
    maps: &[MapLine],
    threads: impl Iterator<Item = &'r Registers>,
    mut visit: impl FnMut(usize, u64, &[u64]),
) -> Vec<bool> {
    let mut open: Vec<_> = threads.map(Registers::stack_start).enumerate().collect();
    let mut whole = vec![true; open.len()];
    let mut reader = Reader {
        memory,
        maps,
        read: BTreeMap::new(),
        left: MOST_BYTES,
        stacks: MOST.saturating_mul(open.len()),
        bytes: Vec::new(),
        words: Vec::new(),
    };
    // From the highest address down: one that lies below another is read up to there.
    open.sort_unstable_by_key(|&(_, start)| start);
    let of_threads: HashSet<u64> = open.iter().map(|&(_, start)| start).collect();
    while let Some((thread, start)) = open.pop() {
        let Some(range) = reader.stack_at(start) else {
            // No stack at all: a frame that only looked like one.
            whole[thread] &= !of_threads.contains(&start);
            continue;
        };
        let mut found = HashSet::new();
        let most = reader.stacks;
        whole[thread] &= reader.each_piece(range.clone(), |at, words| {
            visit(thread, at, words);
            // What looks like a frame in the middle of data has no program counter.
            let frames = interrupted(words)
                .filter(|frame| line_at(maps, frame.pc).is_some_and(|line| line.executable));
            let away = frames.map(|frame| frame.sp).filter(|sp| !range.contains(sp));
            // One more than may be followed shows that there are too many.
            for sp in away {
                if found.len() <= most {
                    found.insert(sp);
                }
            }
        });
        whole[thread] &= found.len() <= most;
        open.extend(found.into_iter().map(|sp| (thread, sp)));
    }
    whole
}

/// The mapping that holds an address.
fn line_at(maps: &[MapLine], address: u64) -> Option<&MapLine> {
    let index = maps.partition_point(|line| line.range.end <= address);
    maps.get(index).filter(|line| line.range.start <= address)
}

impl Reader<'_> {
    /// Where the stack lies that is in use from `start` on, without what was read already. `None` if there is none.
    fn stack_at(&mut self, start: u64) -> Option<Range<u64>> {
        let index = self.maps.partition_point(|line| line.range.end <= start);
        let line = self.maps.get(index).filter(|line| line.readable)?;
        // The red zone may reach below a stack's first page.
        let below = line.range.start.saturating_sub(start);
        if below > RED_ZONE {
            return None;
        }
        let start = start.max(line.range.start).next_multiple_of(8);
        // A part that was made executable is a mapping of its own.
        let mut end = line.range.end;
        for (line, next) in self.maps[index..].iter().zip(&self.maps[index + 1..]) {
            let goes_on = next.range.start == end && next.readable && line.executable != next.executable;
            if !goes_on || line.inode != 0 || next.inode != 0 {
                break;
            }
            end = next.range.end;
        }
        if let Some((_, &before)) = self.read.range(..=start).next_back()
            && before > start
        {
            return Some(start..start);
        }
        let end = self.read.range(start..end).next().map_or(end, |(&above, _)| above);
        self.read.insert(start, end);
        Some(start..end)
    }

    /// Visits what there is of a stack. False if not all could be read.
    fn each_piece(&mut self, range: Range<u64>, mut visit: impl FnMut(u64, &[u64])) -> bool {
        if range.is_empty() {
            return true;
        }
        let Some(left) = self.stacks.checked_sub(1) else { return false };
        self.stacks = left;
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / PAGE + PAGES) * PAGE);
            for touched in self.touched(at..end) {
                let mut from = touched.start;
                while from < touched.end {
                    let to = touched.end.min(from + PIECE);
                    // A frame may have begun in the piece before.
                    let begin = from.saturating_sub(8 * FRAME_WORDS as u64).max(range.start);
                    let Some(left) = self.left.checked_sub(to - begin) else { return false };
                    self.left = left;
                    if !self.piece(begin..to) {
                        return false;
                    }
                    visit(begin, &self.words);
                    from = to;
                }
            }
            at = end;
        }
        true
    }

    /// The pages of a range, at most [`PAGES`], that the program has touched: others hold nothing. Of a file all are.
    fn touched(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let line = line_at(self.maps, range.start);
        let is_private = line.is_some_and(|line| line.inode == 0 && range.end <= line.range.end);
        let first = range.start / PAGE;
        let count = range.end.div_ceil(PAGE) - first;
        let pages = is_private.then(|| self.memory.pages(first, count)).flatten();
        let Some(pages) = pages else { return vec![range] };
        self.left = self.left.saturating_sub(8 * count);
        let mut all: Vec<Range<u64>> = Vec::new();
        for (number, _) in (first..).zip(pages).filter(|&(_, is_there)| is_there) {
            let page = (number * PAGE).max(range.start)..((number + 1) * PAGE).min(range.end);
            match all.last_mut() {
                Some(last) if last.end == page.start => last.end = page.end,
                _ => all.push(page),
            }
        }
        all
    }

    /// Reads the words of a piece. False if not all of it can be read.
    fn piece(&mut self, range: Range<u64>) -> bool {
        let Self { memory, bytes, .. } = self;
        bytes.resize((range.end - range.start) as usize, 0);
        let read = memory.read_some(range.start, bytes);
        let words = bytes[..read].as_chunks().0;
        self.words.clear();
        self.words.extend(words.iter().map(|word| u64::from_ne_bytes(*word)));
        read == self.bytes.len()
    }
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
    }
    each_stack(memory, maps, frozen.registers().map(|(_, registers)| registers), |_, start, words| {
        let found =
            interrupted(words).filter_map(|frame| Some((start + 8 * frame.index as u64, way(frame.pc)?)));
        frames.extend(found);
    });
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
    if !book.edits.iter().any(super::book::Edit::is_padding) {
        return false;
    }
    let mut found = frozen.registers().any(|(_, registers)| is_in(registers.pc()));
    let threads = frozen.registers().map(|(_, registers)| registers);
    let whole = each_stack(memory, maps, threads, |_, _, words| {
        found |= interrupted(words).any(|frame| is_in(frame.pc));
    });
    found || whole.contains(&false)
}

/// How many threads are in the agent, or may come back to it.
pub(crate) fn inside(frozen: &Frozen, memory: &Memory, maps: &[MapLine], book: &Book) -> usize {
    let returns: HashSet<u64> =
        book.edits.iter().flat_map(|edit| edit.returns().collect::<Vec<_>>()).collect();
    let has_data = book.edits.iter().any(super::book::Edit::is_data);
    // Most words lie far from all of them.
    let (first, last) = (returns.iter().min().copied(), returns.iter().max().copied());
    let returns_to = |word: u64| first <= Some(word) && Some(word) <= last && returns.contains(&word);
    // What can't be read might be.
    let is_left = |word: u64| {
        let mut before = [0; LONGEST_CALL];
        memory.read(word - LONGEST_CALL as u64, &mut before).is_err() || is_left_by_stub(&before)
    };
    let leads_back = |word: &u64| (book.stubs.contains(word) && is_left(*word)) || returns_to(address(*word));
    let is_inside = |registers: &Registers| {
        book.holds(registers.pc())
            || book.holds(registers.sp())
            || is_borrowed(registers, memory)
            || registers.link().is_some_and(|link| book.holds(address(link)))
            // A thread may have read the word that leads to the agent, and be about to follow it.
            || has_data && registers.values().iter().any(|value| image_of(book).contains(value))
    };
    let mut found: Vec<_> = frozen.registers().map(|(_, registers)| is_inside(registers)).collect();
    let threads = frozen.registers().map(|(_, registers)| registers);
    let whole = each_stack(memory, maps, threads, |thread, _, words| {
        // A word that looks like a frame's may be data, and what stands before it an address of our data.
        let is_code = |pc| line_at(maps, pc).is_some_and(|line| line.executable);
        let mut frames = interrupted(words);
        found[thread] |=
            words.iter().any(leads_back) || frames.any(|frame| book.holds(frame.pc) && is_code(frame.pc));
    });
    found.iter().zip(whole).filter(|&(&found, whole)| found || !whole).count()
}

/// The mapping that holds the stubs.
fn image_of(book: &Book) -> Range<u64> {
    let held = book.mappings.iter().find(|held| held.range.contains(&book.stubs.start));
    held.map_or(0..0, |held| held.range.clone())
}

#[cfg(test)]
mod tests {
    use super::super::memory::tests::fresh;
    use super::*;

    fn line(range: Range<u64>, readable: bool) -> MapLine {
        MapLine { range, readable, executable: false, inode: 0, name: String::new() }
    }

    /// Of a thread whose stack is in use from the word behind `sp` on.
    fn at(sp: u64) -> Registers {
        let mut registers = Registers::default();
        registers.stand(0, sp + 8 + RED_ZONE);
        registers
    }

    /// Of one thread whose stack is in use from `start` on: what was visited, and whether that was all.
    fn visited(maps: &[MapLine], start: u64) -> (Vec<u64>, bool) {
        let memory = Memory::open(std::process::id()).unwrap();
        let mut visited = Vec::new();
        let whole = each_stack(&memory, maps, [at(start)].iter(), |_, at, _| visited.push(at));
        (visited, whole[0])
    }

    #[test]
    fn a_stack_that_cannot_be_read_is_not_all_seen() {
        assert_eq!(visited(&[line(0x1000..0x3000, false)], 0x2000), (vec![], false));
        assert_eq!(visited(&[line(0x3000..0x4000, true)], 0x2000), (vec![], false));
        // What isn't there any more holds nothing.
        assert_eq!(visited(&[line(0x3000..0x4000, true)], 0x3000), (vec![], true));
        assert_eq!(visited(&[], 1 << 40), (vec![], false));
    }

    #[test]
    fn frames_that_lead_on_for_ever_are_not_followed_for_ever() {
        const STACK: u64 = 64;
        const CODE: u64 = 0x1000;
        let seen = |stacks: u64, is_code: bool| {
            let mut words = vec![0u64; 8 * stacks as usize + 2];
            let start = (words.as_ptr().addr() as u64).next_multiple_of(16);
            let first = (start as usize - words.as_ptr().addr()) / 8;
            let mut maps: Vec<_> =
                (0..stacks).map(|at| line(start + STACK * at..start + STACK * (at + 1), true)).collect();
            maps.insert(0, MapLine { executable: is_code, ..line(CODE..CODE + 1, true) });
            for at in 1..stacks as usize {
                let frame = first + 8 * (at - 1);
                (words[frame + 4], words[frame + 7]) = (start + STACK * at as u64, 0x33);
                words[frame + 5] = CODE;
            }
            let (visited, whole) = visited(&maps, start);
            (visited.len(), whole)
        };
        assert_eq!(seen(10, true), (10, true));
        assert_eq!(seen(200, true), (MOST, false));
        assert_eq!(seen(200, false), (1, true));
    }

    #[test]
    fn stacks_in_one_large_mapping_are_read_once_and_only_where_they_were_touched() {
        const POOL: usize = 8 << 30;
        const STACK: u64 = 64 << 20;
        let memory = Memory::open(std::process::id()).unwrap();
        let start = fresh(POOL);
        let maps = [line(start..start + POOL as u64, true)];
        let threads: Vec<_> = (1..100).map(|number| at(start + number * STACK - 64)).collect();
        // The last two words of each stack, of which each thread's next one lies above.
        for number in 1..100u64 {
            memory.write(start + number * STACK - 8, &number.to_ne_bytes()).unwrap();
        }
        let mut found = vec![Vec::new(); threads.len()];
        let mut bytes = 0;
        let whole = each_stack(&memory, &maps, threads.iter(), |thread, _, words| {
            bytes += 8 * words.len();
            found[thread].extend(words.iter().copied().filter(|&word| word != 0));
        });
        assert!(whole.iter().all(|&whole| whole));
        assert!(found.iter().enumerate().all(|(at, found)| *found == [at as u64 + 1]), "{found:?}");
        // What lies below a stack pointer is not in use.
        assert!(bytes <= 99 * 2 * PAGE as usize, "{bytes}");
    }

    #[test]
    fn a_stack_goes_on_where_part_of_it_was_made_executable() {
        let words = [5u64; 48];
        let start = (words.as_ptr().addr() as u64).next_multiple_of(16);
        let part = |number: u64, executable| MapLine {
            executable,
            ..line(start + 64 * number..start + 64 * (number + 1), true)
        };
        let maps = [part(0, false), part(1, true), part(2, false), part(3, false)];
        let memory = Memory::open(std::process::id()).unwrap();
        let mut bytes = 0;
        each_stack(&memory, &maps, [at(start)].iter(), |_, _, words| bytes += 8 * words.len());
        assert_eq!(bytes, 3 * 64 - 8);
    }
}
