//! Which units have an address, and whether they can be handed to addr2line.
//!
//! addr2line follows inlined calls into each other by recursion, as deep as the file says. A file that was made for it, or
//! a damaged one, has the thread's stack overflow, which nothing can catch. So a unit's tree is measured before an
//! address of the unit is looked up.

use super::discarded::{Discarded, Slice};
use gimli::{
    AttributeValue, DebugAddrBase, DebugLocListsBase, DebugRngListsBase, DebugStrOffsetsBase, Dwarf, Range,
    Reader, Section, Unit, UnitHeader,
};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

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
    /// From here on, addresses of discarded code are told apart.
    pub(crate) fn new(dwarf: &Dwarf<Slice<'_>>, discarded: &Discarded) -> Result<Self, gimli::Error> {
        let mut aranges = Vec::new();
        let mut headers = dwarf.debug_aranges.headers();
        while let Some(header) = headers.next()? {
            aranges.push((header.debug_info_offset(), header));
        }
        aranges.sort_by_key(|(offset, _)| offset.0);
        let (mut ranges, mut units, mut roots) = (Vec::new(), Vec::new(), Vec::new());
        let mut own = Vec::new();
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let (Some(offset), len) = (header.debug_info_offset(), header.length_including_self()) else {
                continue;
            };
            if matches!(header.type_(), gimli::UnitType::Type { .. }) {
                continue;
            }
            own.clear();
            let is_known = own_ranges(dwarf, header, |range| own.push(range)).is_ok();
            roots.extend(root_with_ranges(dwarf, header, &own, discarded));
            if len < TOO_SHORT {
                continue;
            }
            let before = ranges.len();
            let mut add = |range: Range| {
                if range.begin < range.end {
                    ranges.push(UnitRange { range, min_begin: 0, unit: units.len() });
                }
            };
            own.drain(..).for_each(&mut add);
            let first = aranges.partition_point(|(of, _)| of.0 < offset.0);
            for (_, header) in aranges[first..].iter().take_while(|(of, _)| *of == offset) {
                let mut entries = header.entries();
                // One that is wrong doesn't end them, as it doesn't for addr2line.
                while let Some(entry) = entries.next().transpose() {
                    entry.into_iter().for_each(|entry| add(entry.range()));
                }
            }
            // Found by its lines, if at all, or by something that we read in another way.
            if !is_known || ranges.len() == before {
                ranges.push(UnitRange {
                    range: Range { begin: 0, end: u64::MAX },
                    min_begin: 0,
                    unit: units.len(),
                });
            }
            units.push((offset, Cell::new(State::Unknown)));
        }
        discarded.tell_apart(roots);
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
            // What can't be parsed is passed over by addr2line too.
            state.set(if parsed.is_ok_and(|unit| !is_flat(&unit)) { State::Deep } else { State::Flat });
        }
        state.get() == State::Flat
    }
}

/// The ranges in a unit's first entry. As `Dwarf::unit` and `Dwarf::unit_ranges`, but for the unit's lines, whose lists of files
/// would take most of the time.
fn own_ranges(
    dwarf: &Dwarf<Slice<'_>>,
    header: UnitHeader<Slice<'_>>,
    mut add: impl FnMut(Range),
) -> Result<(), gimli::Error> {
    let encoding = header.encoding();
    let mut unit = Unit {
        abbreviations: dwarf.abbreviations(&header)?,
        name: None,
        comp_dir: None,
        low_pc: 0,
        str_offsets_base: DebugStrOffsetsBase::default_for_encoding_and_file(encoding, dwarf.file_type),
        addr_base: DebugAddrBase(0),
        loclists_base: DebugLocListsBase::default_for_encoding_and_file(encoding, dwarf.file_type),
        rnglists_base: DebugRngListsBase::default_for_encoding_and_file(encoding, dwarf.file_type),
        line_program: None,
        dwo_id: None,
        header,
    };
    let abbreviations = Arc::clone(&unit.abbreviations);
    let mut cursor = header.entries(&abbreviations);
    cursor.next_dfs()?;
    let root = cursor.current().ok_or(gimli::Error::MissingUnitDie)?;
    for attribute in root.attrs() {
        match attribute.value() {
            AttributeValue::DebugAddrBase(base) => unit.addr_base = base,
            AttributeValue::DebugRngListsBase(base) => unit.rnglists_base = base,
            _ => {}
        }
    }
    if let Some(low) = root.attr(gimli::DW_AT_low_pc) {
        unit.low_pc = dwarf.attr_address(&unit, low.value())?.unwrap_or(0);
    }
    let mut own = dwarf.die_ranges(&unit, root)?;
    while let Ok(Some(range)) = own.next() {
        add(range);
    }
    Ok(())
}

/// Where a unit's first entry is read from, if that has a list of ranges of which one is of code that is there.
fn root_with_ranges(
    dwarf: &Dwarf<Slice<'_>>,
    header: UnitHeader<Slice<'_>>,
    own: &[Range],
    discarded: &Discarded,
) -> Option<std::ops::Range<u64>> {
    if own.iter().all(|range| discarded.has(range.begin)) {
        return None;
    }
    let unit = Section::reader(&dwarf.debug_info).offset_id().0 + header.debug_info_offset()?.0 as u64;
    let abbreviations = dwarf.abbreviations(&header).ok()?;
    let mut entries = header.entries_raw(&abbreviations, None).ok()?;
    let start = unit + entries.next_offset().0 as u64;
    let root = entries.read_abbreviation().ok()??;
    entries.skip_attributes(root.attributes()).ok()?;
    let has_ranges = root.attributes().iter().any(|attribute| attribute.name() == gimli::DW_AT_ranges);
    has_ranges.then(|| start..unit + entries.next_offset().0 as u64)
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
