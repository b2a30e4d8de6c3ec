//! The agent's image, put in order for an address by ourselves: no loader has part in it.

use super::native::{OF_SYMBOLS, RELATIVE};
use object::read::elf::ElfFile64;
use object::{
    Object, ObjectSegment, ObjectSymbol, RelocationFlags, RelocationTarget, SegmentFlags, SymbolSection, elf,
};
use std::ops::Range;

/// The agent for processes that run already, built by `build.rs`.
static AGENT: &[u8] = include_bytes!(env!("GRAPNEL_AGENT_ATTACHED"));

pub(crate) const PAGE: u64 = 4096;

/// What is protected in one way, as offsets in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) range: Range<u64>,
    /// PROT_ flags.
    pub(crate) protection: i32,
}

/// Where a value in the image depends on where that lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    value: u64,
    /// The value is an offset in the image, not 0 for good.
    moves: bool,
}

/// The agent, as it is to lie in memory.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: Vec<u8>,
    pub(crate) segments: Vec<Segment>,
    places: Vec<Place>,
    symbols: Vec<(String, u64)>,
}

/// The image that grapnel carries can't be used. A test reads it; this is for what becomes of the file later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent that grapnel carries is damaged; install grapnel again")]
pub(crate) struct Damaged;

impl Image {
    /// Reads the agent that the command carries.
    pub(crate) fn new() -> Result<Self, Damaged> {
        Self::read(AGENT).ok_or(Damaged)
    }

    fn read(file: &[u8]) -> Option<Self> {
        let elf: ElfFile64<'_> = ElfFile64::parse(file).ok()?;
        let end = elf.segments().map(|segment| segment.address() + segment.size()).max()?;
        let mut bytes = vec![0; usize::try_from(end.next_multiple_of(PAGE)).ok()?];
        let mut segments: Vec<Segment> = Vec::new();
        for segment in elf.segments() {
            let data = segment.data().ok()?;
            let start = segment.address() as usize;
            bytes.get_mut(start..start + data.len())?.copy_from_slice(data);
            let SegmentFlags::Elf { p_flags, .. } = segment.flags() else { return None };
            let rights =
                [(elf::PF_R, libc::PROT_READ), (elf::PF_W, libc::PROT_WRITE), (elf::PF_X, libc::PROT_EXEC)];
            let protection = rights
                .iter()
                .filter(|(flag, _)| p_flags.0 & flag.0 != 0)
                .fold(0, |all, (_, right)| all | right);
            let range =
                segment.address() & !(PAGE - 1)..(segment.address() + segment.size()).next_multiple_of(PAGE);
            segments.push(Segment { range, protection });
        }
        let mut places = Vec::new();
        for (at, relocation) in elf.dynamic_relocations()? {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { return None };
            let place = match (r_type, relocation.target()) {
                (RELATIVE, _) => Place { at, value: relocation.addend() as u64, moves: true },
                (kind, RelocationTarget::Symbol(index)) if OF_SYMBOLS.contains(&kind) => {
                    let symbol = elf
                        .dynamic_symbol_table()
                        .and_then(|table| object::ObjectSymbolTable::symbol_by_index(&table, index).ok())?;
                    let is_ours = symbol.section() != SymbolSection::Undefined;
                    // What the compiler's start files would like to call, if there were anybody to do it.
                    if !is_ours && !symbol.is_weak() {
                        return None;
                    }
                    Place { at, value: symbol.address(), moves: is_ours }
                }
                _ => return None,
            };
            bytes.get(place.at as usize..)?.first_chunk::<8>()?;
            places.push(place);
        }
        let named = |symbol: object::read::elf::ElfSymbol64<'_, '_>| {
            Some((symbol.name().ok()?.to_owned(), symbol.address()))
        };
        let symbols = elf.dynamic_symbols().filter_map(named).collect();
        Some(Self { bytes, segments, places, symbols })
    }

    /// How much memory it takes.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Its bytes for the address `base`.
    pub(crate) fn at(&self, base: u64) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for place in &self.places {
            let value = if place.moves { base.wrapping_add(place.value) } else { 0 };
            if let Some(to) = bytes.get_mut(place.at as usize..).and_then(<[u8]>::first_chunk_mut) {
                *to = value.to_le_bytes();
            }
        }
        bytes
    }

    /// Where a name lies in it.
    pub(crate) fn symbol(&self, name: &str) -> Result<u64, Damaged> {
        self.symbols.iter().find(|(known, _)| known == name).map(|(_, at)| *at).ok_or(Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_trace::attached::{ENTRY_SYMBOL, LEDGER_SYMBOL};

    #[test]
    fn the_agent_asks_for_nothing_and_is_never_writable_and_executable() {
        let image = Image::new().unwrap();
        assert!(image.symbol(LEDGER_SYMBOL).is_ok() && image.symbol(ENTRY_SYMBOL).is_ok());
        assert!(image.symbol("malloc").is_err());
        let both = libc::PROT_WRITE | libc::PROT_EXEC;
        assert!(image.segments.iter().all(|segment| segment.protection & both != both));
        assert!(image.segments.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
    }

    #[test]
    fn addresses_move_with_the_base() {
        let image = Image::new().unwrap();
        let (low, high) = (image.at(0x10000), image.at(0x7f00_0000_0000));
        let place = image.places.iter().find(|place| place.moves).unwrap();
        let word = |bytes: &[u8]| u64::from_le_bytes(*bytes[place.at as usize..].first_chunk().unwrap());
        assert_eq!(word(&high) - word(&low), 0x7f00_0000_0000 - 0x10000);
        assert!(image.places.iter().any(|place| !place.moves));
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        for len in [0, 64, 4096, AGENT.len() / 2] {
            assert!(Image::read(&AGENT[..len]).is_none());
        }
    }
}
