//! Variables by address, from `.symtab` and `.dynsym`.

use super::files::ElfFile;
use object::read::{Object, ObjectSymbol};
use object::{SymbolKind, SymbolSection};
use std::ops::Range;

/// The variables of a module, by address. Unlike functions they are few, and all of their names are kept.
#[derive(Debug, Default)]
pub(crate) struct Variables(Vec<(Range<u64>, Box<str>)>);

/// More than any module has.
const MOST: usize = 1 << 20;

impl Variables {
    pub(crate) fn new(files: &[&ElfFile<'_>]) -> Self {
        let mut all: Vec<(Range<u64>, u8, Box<str>)> = Vec::new();
        for file in files {
            for symbol in file.symbols().chain(file.dynamic_symbols()) {
                let is_variable = symbol.kind() == SymbolKind::Data
                    && symbol.size() > 0
                    && matches!(symbol.section(), SymbolSection::Section(_) | SymbolSection::Common);
                let range = symbol.address()..symbol.address().saturating_add(symbol.size());
                if let Some(name) = symbol.name_bytes().ok().filter(|name| is_variable && !name.is_empty())
                    && all.len() < MOST
                {
                    let rank = 2 * u8::from(symbol.is_local()) + u8::from(symbol.is_weak());
                    all.push((range, rank, String::from_utf8_lossy(name).into()));
                }
            }
        }
        all.sort_by_key(|(range, rank, _)| (range.start, *rank));
        all.dedup_by_key(|(range, ..)| range.start);
        Self(all.into_iter().map(|(range, _, name)| (range, name)).collect())
    }

    /// The variable that an address lies in.
    pub(crate) fn at(&self, address: u64) -> Option<(Range<u64>, &str)> {
        let behind = self.0.partition_point(|(range, _)| range.start <= address);
        let (range, name) = self.0.get(behind.checked_sub(1)?)?;
        range.contains(&address).then(|| (range.clone(), &**name))
    }
}
