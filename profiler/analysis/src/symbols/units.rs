//! Which units have an address, and whether they can be handed to addr2line.
//!
//! addr2line follows inlined calls into each other by recursion, as deep as the file says. A file that was made for it, or
//! a damaged one, has the thread's stack overflow, which nothing can catch. So a unit's tree is measured before an
//! address of the unit is looked up.

use super::sections::Slice;
use gimli::{Dwarf, Range, Unit};
use std::cell::Cell;
use std::path::Path;

/// Deeper trees are refused: templates and closures nest calls by the dozen, and each level takes half a
/// kilobyte of stack.
const MAX_DEPTH: isize = 500;

/// A tree of this depth takes more bytes: a byte for each entry and one for the end of its children.
const TOO_SHORT: usize = 2 * MAX_DEPTH as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Flat,
    Deep,
}

struct UnitRange {
    range: Range,
    /// The smallest begin of this range and those behind it.
    min_begin: u64,
    unit: usize,
}

/// The units of a file by their addresses.
pub(crate) struct UnitDepths {
    /// Sorted by their ends.
    ranges: Vec<UnitRange>,
    units: Vec<(gimli::DebugInfoOffset, Cell<State>)>,
}

impl UnitDepths {
    pub(crate) fn new(dwarf: &Dwarf<Slice<'_>>) -> Result<Self, gimli::Error> {
        let mut aranges = Vec::new();
        let mut headers = dwarf.debug_aranges.headers();
        while let Some(header) = headers.next()? {
            aranges.push((header.debug_info_offset(), header));
        }
        aranges.sort_by_key(|(offset, _)| offset.0);
        let (mut ranges, mut units) = (Vec::new(), Vec::new());
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let (Some(offset), len) = (header.debug_info_offset(), header.length_including_self()) else {
                continue;
            };
            if len < TOO_SHORT || matches!(header.type_(), gimli::UnitType::Type { .. }) {
                continue;
            }
            let Ok(unit) = dwarf.unit(header) else { continue };
            let before = ranges.len();
            let mut add = |range: Range| {
                if range.begin < range.end {
                    ranges.push(UnitRange { range, min_begin: 0, unit: units.len() });
                }
            };
            let mut own = dwarf.unit_ranges(&unit)?;
            while let Ok(Some(range)) = own.next() {
                add(range);
            }
            let first = aranges.partition_point(|(of, _)| of.0 < offset.0);
            for (_, header) in aranges[first..].iter().take_while(|(of, _)| *of == offset) {
                let mut entries = header.entries();
                while let Ok(Some(entry)) = entries.next() {
                    add(entry.range());
                }
            }
            // Found by its lines, if at all.
            if ranges.len() == before {
                ranges.push(UnitRange {
                    range: Range { begin: 0, end: u64::MAX },
                    min_begin: 0,
                    unit: units.len(),
                });
            }
            units.push((offset, Cell::new(State::Unknown)));
        }
        ranges.sort_unstable_by_key(|range| (range.range.end, range.unit));
        let mut min = u64::MAX;
        for range in ranges.iter_mut().rev() {
            min = min.min(range.range.begin);
            range.min_begin = min;
        }
        Ok(Self { ranges, units })
    }

    /// Whether all units that have this address can be looked into.
    pub(crate) fn are_flat_at(&self, dwarf: &Dwarf<Slice<'_>>, address: u64) -> bool {
        let first = self.ranges.partition_point(|range| range.range.end <= address);
        let mut here = self.ranges[first..].iter().take_while(|range| range.min_begin <= address);
        here.all(|range| range.range.begin > address || self.is_flat(dwarf, range.unit))
    }

    fn is_flat(&self, dwarf: &Dwarf<Slice<'_>>, unit: usize) -> bool {
        let (offset, state) = &self.units[unit];
        if state.get() == State::Unknown {
            let parsed = dwarf.debug_info.header_from_offset(*offset).and_then(|header| dwarf.unit(header));
            state.set(if parsed.is_ok_and(|unit| is_flat(&unit)) { State::Flat } else { State::Deep });
        }
        state.get() == State::Flat
    }
}

/// What there is to say of a file with such a unit.
pub(crate) fn too_deep(path: &Path) -> String {
    format!(
        "debug information of {} isn't used where it is nested deeper than {MAX_DEPTH}: no compiler wrote that",
        path.display()
    )
}

/// Whether the unit's tree is no deeper than programs are. What is broken is: addr2line stops there too.
pub(crate) fn is_flat(unit: &Unit<Slice<'_>>) -> bool {
    let Ok(mut entries) = unit.entries_raw(None) else { return true };
    while !entries.is_empty() {
        if entries.next_depth() > MAX_DEPTH {
            return false;
        }
        match entries.read_abbreviation() {
            Ok(Some(abbreviation)) if entries.skip_attributes(abbreviation.attributes()).is_ok() => {}
            Ok(None) => {}
            _ => return true,
        }
    }
    true
}
