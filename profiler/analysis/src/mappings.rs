//! What the program mapped by itself: ranges of addresses, with totals and sites of their own.
//!
//! None of it is part of the heap's figures. What libc and the dynamic linker map for themselves is not recorded: memory
//! for `malloc`, stacks of threads, libraries. Other allocators' chunks are, as what they are: mappings.
//!
//! - **mappings**: calls that gave a range: `mmap`, `mremap`, `shmat`, a `brk` or `sbrk` that moved the program's break up.
//! - **mapped bytes**: the lengths of these ranges, added up; of all but the break in whole pages.
//! - **live**: mapped, and neither unmapped since nor replaced by another mapping at the same place. A `mremap` that makes
//!   a range longer or moves it ends one mapping and begins another, at its own stack, as `realloc` does with blocks; one that
//!   leaves it where it is, no longer than before, is the `munmap` of its end. Where one moves a range with holes, as Linux
//!   does from 6.17 on, the holes count as mapped.
//! - **peak**: the largest value that the live bytes had.
//!
//! Bytes are of address space: what was never touched takes no memory. A range that was mapped before the recording began
//! changes no figure when it goes.

use crate::analyse::Violation;
use crate::hash::FoldHash;
use crate::peak::{PeakClock, PeakShare};
use grapnel_trace::{Mapped, MappingEvent};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// More ranges than any process has.
const MOST: usize = 1 << 20;
/// Threads in the middle of a call.
const MOST_HELD: usize = 1 << 16;

/// Figures of mappings of one kind. See the [module's documentation](self) for what each means. The names of its fields are
/// those of the JSON form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MappingFigures {
    /// Calls that gave a range.
    pub mappings: u64,
    /// Their bytes.
    pub mapped_bytes: u64,
    /// Ranges live at the end.
    pub live_mappings: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// The most bytes that were ever live.
    pub peak_bytes: u64,
}

/// What one stack mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingSite {
    /// The stack's node; 0 where no frame is known.
    pub stack: u32,
    /// Its figures; `peak_bytes` is what it held at the peak of all mappings.
    pub figures: MappingFigures,
    /// What they are of: a bit for each [`Mapped`], at its number.
    kinds: u8,
}

impl MappingSite {
    /// What the site's mappings are of.
    pub fn kinds(&self) -> impl Iterator<Item = Mapped> + use<> {
        let kinds = self.kinds;
        Mapped::ALL.into_iter().filter(move |&mapped| kinds & 1 << mapped as u8 != 0)
    }

    fn add(&mut self, part: &Self) {
        let (own, other) = (&mut self.figures, &part.figures);
        own.mappings += other.mappings;
        own.mapped_bytes = own.mapped_bytes.saturating_add(other.mapped_bytes);
        own.live_mappings += other.live_mappings;
        own.live_bytes = own.live_bytes.wrapping_add(other.live_bytes);
        own.peak_bytes = own.peak_bytes.wrapping_add(other.peak_bytes);
        self.kinds |= part.kinds;
    }
}

/// All that is said of a trace's mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappingAnalysis {
    /// All of them together.
    pub totals: MappingFigures,
    /// When the peak was first reached, in nanoseconds since the recording began.
    pub peak_time_ns: u64,
    /// By what they are of, at the number of [`Mapped`]. Each has its own peak.
    pub kinds: [MappingFigures; Mapped::ALL.len()],
    /// The sites, by their mapped bytes, most first; sites with equal bytes by their mappings, then in the order of
    /// their stacks.
    pub sites: Vec<MappingSite>,
}

/// Part of a mapping that is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    end: u64,
    stack: u32,
    mapped: Mapped,
    /// Where the mapping began.
    origin: u64,
    /// Which mapping it is, by their order: another one may begin at the same place.
    number: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    figures: MappingFigures,
    peak: PeakShare,
    kinds: u8,
}

/// Brings the mappings up to date one event at a time.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// By their starts. No two overlap.
    pieces: BTreeMap<u64, Piece>,
    /// What each thread's last `Unmap` took.
    held: HashMap<u32, Vec<(u64, Piece)>, FoldHash>,
    totals: MappingFigures,
    kinds: [MappingFigures; Mapped::ALL.len()],
    peak_time_ns: u64,
    sites: HashMap<u32, State, FoldHash>,
    clock: PeakClock,
    time_ns: u64,
}

impl Mappings {
    /// What comes from here on happened at this time.
    pub(crate) fn set_time(&mut self, ns: u64) {
        self.time_ns = ns;
    }

    pub(crate) fn apply(&mut self, event: &MappingEvent) -> Result<(), Violation> {
        match *event {
            MappingEvent::Map { thread, stack, address, size, mapped } => {
                self.held.remove(&thread);
                self.map(stack, address, size, mapped);
            }
            MappingEvent::Unmap { thread, address, size } => {
                let mut taken = Vec::new();
                let range = if size == 0 { self.segment(address) } else { (address, size) };
                self.take(range.0, range.1, &mut taken);
                if self.held.len() < MOST_HELD || self.held.contains_key(&thread) {
                    self.held.insert(thread, taken);
                }
            }
            MappingEvent::Remap { thread, stack, address, size, old } => {
                let taken = self.held.remove(&thread).unwrap_or_default();
                let before = taken.first().map(|&(_, piece)| piece).or_else(|| self.at(old));
                self.map(stack, address, size, before.map_or(Mapped::Anonymous, |piece| piece.mapped));
            }
            MappingEvent::Failed { thread } => {
                for (start, piece) in self.held.remove(&thread).unwrap_or_default() {
                    // What came there since is believed.
                    let is_free =
                        self.pieces.range(..piece.end).next_back().is_none_or(|(_, p)| p.end <= start);
                    if is_free {
                        self.put_back(start, piece);
                    }
                }
            }
            _ => {}
        }
        match self.pieces.len() {
            0..=MOST => Ok(()),
            _ => Err(Violation::TooMany { what: "mappings", limit: MOST as u64 }),
        }
    }

    /// What is live, by address.
    pub(crate) fn live(&self) -> impl Iterator<Item = (Range<u64>, Mapped)> {
        self.pieces.iter().map(|(&start, piece)| (start..piece.end, piece.mapped))
    }

    /// The piece at an address.
    fn at(&self, address: u64) -> Option<Piece> {
        let (_, piece) = self.pieces.range(..=address).next_back()?;
        (piece.end > address).then_some(*piece)
    }

    /// What is left of the segment that was mapped at an address, to its last byte: its start and length. Nothing else lies in
    /// between, but for what was mapped over it: there it ends.
    fn segment(&self, address: u64) -> (u64, u64) {
        let is_of_it = |piece: &Piece| piece.mapped == Mapped::Segment && piece.origin == address;
        let pieces = self.pieces.range(address..).take_while(|(_, piece)| is_of_it(piece));
        (address, pieces.last().map_or(0, |(_, piece)| piece.end - address))
    }

    fn map(&mut self, stack: u32, address: u64, size: u64, mapped: Mapped) {
        // What reaches beyond the end of all addresses is made up.
        let Some(end) = address.checked_add(size).filter(|_| size != 0) else { return };
        self.take(address, size, &mut Vec::new());
        let state = self.sites.entry(stack).or_default();
        state.kinds |= 1 << mapped as u8;
        for figures in [&mut self.totals, &mut self.kinds[mapped as usize], &mut state.figures] {
            figures.mappings += 1;
            figures.mapped_bytes = figures.mapped_bytes.saturating_add(size);
        }
        let number = self.totals.mappings;
        self.put(address, Piece { end, stack, mapped, origin: address, number });
    }

    /// Makes a piece live, where nothing is.
    fn put(&mut self, start: u64, piece: Piece) {
        self.pieces.insert(start, piece);
        self.change(piece, piece.end - start, u64::wrapping_add);
        let kind = &mut self.kinds[piece.mapped as usize];
        kind.peak_bytes = kind.peak_bytes.max(kind.live_bytes);
        if self.totals.live_bytes > self.totals.peak_bytes {
            self.totals.peak_bytes = self.totals.live_bytes;
            self.peak_time_ns = self.time_ns;
            self.clock.new_peak();
        }
    }

    /// Makes a piece live again, where nothing is: one range with what is left of its mapping on either side.
    fn put_back(&mut self, start: u64, piece: Piece) {
        self.put(start, piece);
        self.join_at(start);
        self.join_at(piece.end);
    }

    /// Joins the pieces that meet at an address, if both are of one mapping.
    fn join_at(&mut self, address: u64) {
        let Some(&behind) = self.pieces.get(&address) else { return };
        let Some((_, before)) = self.pieces.range_mut(..address).next_back() else { return };
        if before.end == address && before.number == behind.number {
            before.end = behind.end;
            self.pieces.remove(&address);
        }
    }

    /// Takes out of a range all that is live there, in order.
    fn take(&mut self, start: u64, size: u64, taken: &mut Vec<(u64, Piece)>) {
        let Some(end) = start.checked_add(size).filter(|_| size != 0) else { return };
        let first = self.pieces.range(..=start).next_back().map_or(start, |(&first, _)| first);
        let touched = self.pieces.range(first..end).filter(|(_, piece)| piece.end > start);
        let touched: Vec<(u64, Piece)> = touched.map(|(&first, &piece)| (first, piece)).collect();
        for (first, piece) in touched {
            self.pieces.remove(&first);
            if first < start {
                self.pieces.insert(first, Piece { end: start, ..piece });
            }
            if piece.end > end {
                self.pieces.insert(end, piece);
            }
            let gone = (first.max(start), Piece { end: piece.end.min(end), ..piece });
            self.change(piece, gone.1.end - gone.0, u64::wrapping_sub);
            taken.push(gone);
        }
    }

    fn change(&mut self, piece: Piece, bytes: u64, change: fn(u64, u64) -> u64) {
        let state = self.sites.entry(piece.stack).or_default();
        self.clock.before_change(&mut state.peak, state.figures.live_bytes);
        for figures in [&mut state.figures, &mut self.totals, &mut self.kinds[piece.mapped as usize]] {
            figures.live_bytes = change(figures.live_bytes, bytes);
        }
    }

    /// What there is to say, under the first of equal stacks.
    pub(crate) fn finish(mut self, canonical: &[u32]) -> MappingAnalysis {
        for piece in self.pieces.values() {
            self.totals.live_mappings += 1;
            self.kinds[piece.mapped as usize].live_mappings += 1;
            self.sites.entry(piece.stack).or_default().figures.live_mappings += 1;
        }
        let mut merged: HashMap<u32, MappingSite, FoldHash> = HashMap::default();
        for (stack, state) in self.sites {
            let stack = canonical.get(stack as usize).copied().unwrap_or(stack);
            let peak_bytes = self.clock.share(&state.peak, state.figures.live_bytes);
            let figures = MappingFigures { peak_bytes, ..state.figures };
            let site = MappingSite { stack, figures, kinds: state.kinds };
            merged.entry(stack).and_modify(|sum| sum.add(&site)).or_insert(site);
        }
        let mut sites: Vec<MappingSite> = merged.into_values().collect();
        sites.sort_by(|a, b| {
            let key = |site: &MappingSite| (site.figures.mapped_bytes, site.figures.mappings);
            key(b).cmp(&key(a)).then(a.stack.cmp(&b.stack))
        });
        MappingAnalysis { totals: self.totals, peak_time_ns: self.peak_time_ns, kinds: self.kinds, sites }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn map(stack: u32, page: u64, pages: u64, mapped: Mapped) -> MappingEvent {
        MappingEvent::Map { thread: 0, stack, address: page * PAGE, size: pages * PAGE, mapped }
    }

    fn unmap(thread: u32, page: u64, pages: u64) -> MappingEvent {
        MappingEvent::Unmap { thread, address: page * PAGE, size: pages * PAGE }
    }

    fn remap(stack: u32, page: u64, pages: u64, old: u64) -> MappingEvent {
        let (address, size) = (page * PAGE, pages * PAGE);
        MappingEvent::Remap { thread: 0, stack, address, size, old: old * PAGE }
    }

    fn run(events: &[MappingEvent]) -> MappingAnalysis {
        let mut mappings = Mappings::default();
        for (time, event) in events.iter().enumerate() {
            mappings.set_time(time as u64);
            mappings.apply(event).unwrap();
        }
        mappings.finish(&[])
    }

    /// Pages: mapped, live, at the peak; and ranges: mapped, live.
    fn pages(figures: &MappingFigures) -> [u64; 5] {
        let MappingFigures { mapped_bytes, live_bytes, peak_bytes, mappings, live_mappings } = *figures;
        [mapped_bytes / PAGE, live_bytes / PAGE, peak_bytes / PAGE, mappings, live_mappings]
    }

    #[test]
    fn a_part_in_the_middle_goes() {
        let found = run(&[map(1, 10, 9, Mapped::Anonymous), unmap(0, 13, 2)]);
        assert_eq!(pages(&found.totals), [9, 7, 9, 1, 2]);
        assert_eq!(pages(&found.sites[0].figures), [9, 7, 9, 1, 2]);
        assert_eq!(found.peak_time_ns, 0);
    }

    #[test]
    fn one_call_may_take_several_and_what_is_not_known() {
        let found = run(&[
            map(1, 10, 2, Mapped::Anonymous),
            map(2, 14, 4, Mapped::File),
            map(3, 20, 4, Mapped::Anonymous),
            unmap(0, 1, 20),
        ]);
        assert_eq!(pages(&found.totals), [10, 3, 10, 3, 1]);
        assert_eq!(pages(&found.kinds[Mapped::File as usize]), [4, 0, 4, 1, 0]);
        let live: Vec<(u32, u64)> =
            found.sites.iter().map(|s| (s.stack, s.figures.live_bytes / PAGE)).collect();
        assert_eq!(live, [(2, 0), (3, 3), (1, 0)]);
    }

    #[test]
    fn what_is_mapped_over_another_takes_its_place() {
        let found = run(&[map(1, 10, 10, Mapped::Anonymous), map(2, 12, 3, Mapped::File)]);
        assert_eq!(pages(&found.totals), [13, 10, 10, 2, 3]);
        assert_eq!(pages(&found.sites[0].figures), [10, 7, 10, 1, 2]);
        assert_eq!(pages(&found.sites[1].figures), [3, 3, 0, 1, 1]);
        assert_eq!(found.sites[1].kinds().collect::<Vec<_>>(), [Mapped::File]);
    }

    #[test]
    fn a_mapping_that_moves_or_grows_is_of_what_it_was() {
        let found = run(&[map(1, 10, 4, Mapped::File), unmap(0, 10, 4), remap(2, 50, 9, 10)]);
        assert_eq!(pages(&found.totals), [13, 9, 9, 2, 1]);
        assert_eq!(pages(&found.kinds[Mapped::File as usize]), [13, 9, 9, 2, 1]);
        // Without its going: what was left behind, or shared once more, is still there.
        let found = run(&[map(1, 10, 4, Mapped::File), remap(2, 50, 4, 11)]);
        assert_eq!(pages(&found.kinds[Mapped::File as usize]), [8, 8, 8, 2, 2]);
    }

    #[test]
    fn a_call_that_fails_leaves_all_as_it_was() {
        let failed = MappingEvent::Failed { thread: 1 };
        // In the middle, at the start, at the end, and all of it.
        for (page, count) in [(11, 2), (10, 2), (12, 2), (10, 4), (8, 9)] {
            let found = run(&[map(1, 10, 4, Mapped::Anonymous), unmap(1, page, count), failed]);
            for figures in [&found.totals, &found.kinds[Mapped::Anonymous as usize], &found.sites[0].figures]
            {
                assert_eq!(pages(figures), [4, 4, 4, 1, 1], "{count} from {page}");
            }
        }
        // Another thread's going is its own, and what was mapped there since stays.
        let found = run(&[
            map(1, 10, 4, Mapped::Anonymous),
            unmap(1, 10, 4),
            map(2, 12, 1, Mapped::File),
            MappingEvent::Failed { thread: 2 },
            failed,
        ]);
        assert_eq!(pages(&found.totals), [5, 1, 4, 2, 1]);
    }

    #[test]
    fn what_a_failed_call_puts_back_is_joined_within_its_mapping_alone() {
        let failed = MappingEvent::Failed { thread: 1 };
        // Three mappings side by side of one stack and kind: from within the first to within the last.
        let mapped = [10, 14, 18].map(|page| map(1, page, 4, Mapped::Anonymous));
        let found = run(&[&mapped[..], &[unmap(1, 12, 8), failed]].concat());
        assert_eq!(pages(&found.totals), [12, 12, 12, 3, 3]);
        // Two that began at the same place, of which the second took the start of the first.
        let replaced = [map(1, 10, 4, Mapped::Anonymous), map(1, 10, 2, Mapped::Anonymous)];
        let found = run(&[&replaced[..], &[unmap(1, 11, 2), failed]].concat());
        assert_eq!(pages(&found.totals), [6, 4, 4, 2, 2]);
        // What truly went in between stays away.
        let parts = [map(1, 10, 9, Mapped::Anonymous), unmap(0, 14, 1)];
        let found = run(&[&parts[..], &[unmap(1, 12, 4), failed]].concat());
        assert_eq!(pages(&found.totals), [9, 8, 9, 1, 2]);
        // Two threads in neighbouring parts of one mapping.
        let both = [map(1, 10, 9, Mapped::Anonymous), unmap(0, 12, 2), unmap(1, 14, 2)];
        let found = run(&[&both[..], &[failed, MappingEvent::Failed { thread: 0 }]].concat());
        assert_eq!(pages(&found.totals), [9, 9, 9, 1, 1]);
        let found = run(&[&both[..], &[failed]].concat());
        assert_eq!(pages(&found.totals), [9, 7, 9, 1, 2]);
        // A `mremap` that fails is no other; what follows takes the whole range.
        let moved = [map(1, 10, 4, Mapped::File), unmap(0, 11, 2), MappingEvent::Failed { thread: 0 }];
        let found = run(&[&moved[..], &[unmap(0, 10, 4), remap(2, 50, 9, 10)]].concat());
        assert_eq!(pages(&found.kinds[Mapped::File as usize]), [13, 9, 9, 2, 1]);
    }

    #[test]
    fn a_segment_goes_as_a_whole() {
        let detach = |page: u64| MappingEvent::Unmap { thread: 0, address: page * PAGE, size: 0 };
        let shared = |page| map(1, page, 4, Mapped::Segment);
        let found = run(&[shared(10), shared(14), detach(10)]);
        assert_eq!(pages(&found.totals), [8, 4, 8, 2, 1]);
        let found = run(&[map(1, 10, 4, Mapped::Anonymous), detach(10), detach(11)]);
        assert_eq!(pages(&found.totals), [4, 4, 4, 1, 1]);
    }

    #[test]
    fn what_can_not_be_is_taken_for_nothing() {
        let event = |address, size| MappingEvent::Map {
            thread: u32::MAX,
            stack: 1,
            address,
            size,
            mapped: Mapped::Anonymous,
        };
        let found = run(&[
            event(u64::MAX - 5, 10),
            event(7, 0),
            MappingEvent::Unmap { thread: 0, address: u64::MAX, size: u64::MAX },
            MappingEvent::Failed { thread: 9 },
        ]);
        assert_eq!(found, MappingAnalysis::default());
    }
}
