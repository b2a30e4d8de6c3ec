//! Functions by address, from `.symtab` and `.dynsym`.

use super::files::ElfFile;
use object::read::{Object, ObjectSymbol, SymbolIndex};
use object::{Architecture, SymbolKind, SymbolSection};

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    size: u64,
    /// Which of several names of one address to prefer: lower is better.
    rank: u8,
    source: u8,
    index: SymbolIndex,
}

/// How many labels inside a function are passed by on the way to its beginning.
const LABELS_WITHIN: usize = 64;

/// The function symbols of a module: of its debug file and of itself.
///
/// Holds no names: only those of addresses that are looked up are ever read.
pub(crate) struct SymbolTable {
    /// Sorted by address, and by rank where they share one.
    entries: Vec<Entry>,
}

impl SymbolTable {
    /// Reads the tables of these files. [`SymbolTable::name`] must be given the same ones.
    pub(crate) fn new(files: &[&ElfFile<'_>]) -> Self {
        let mut entries = Vec::new();
        for (file_index, file) in files.iter().enumerate() {
            let source = 2 * file_index as u8;
            let marked = MarkedCode::of(file);
            entries.extend(file.symbols().filter_map(|symbol| Entry::of(&symbol, source, marked)));
            entries
                .extend(file.dynamic_symbols().filter_map(|symbol| Entry::of(&symbol, source + 1, marked)));
        }
        entries.sort_unstable_by_key(|entry| (entry.address, entry.rank, entry.source, entry.index.0));
        entries.dedup_by_key(|entry| entry.address);
        Self { entries }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The name of the function that has this address within its size. Only where there is none, a symbol
    /// without size, as hand-written assembly has them, reaches to the next one.
    pub(crate) fn name(&self, files: &[&ElfFile<'_>], address: u64) -> Option<String> {
        let next = self.entries.partition_point(|entry| entry.address <= address);
        let before = || self.entries[..next].iter().rev().take(LABELS_WITHIN);
        let holds = |entry: &&Entry| address - entry.address < entry.size;
        let entry = before().find(holds).or_else(|| before().next().filter(|entry| entry.size == 0))?;
        entry.name(files)
    }

    /// The name of each function, until `goes_on` says no: whether it never did.
    pub(crate) fn each_name(&self, files: &[&ElfFile<'_>], mut goes_on: impl FnMut(String) -> bool) -> bool {
        self.entries.iter().filter_map(|entry| entry.name(files)).all(&mut goes_on)
    }
}

/// Whether symbols such as `$d` mark code and data (AAELF32 and AAELF64, "Mapping symbols"), and whether the lowest bit of a
/// function's address tells that its code is T32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkedCode {
    No,
    Arm,
    Aarch64,
}

impl MarkedCode {
    fn of(file: &ElfFile<'_>) -> Self {
        match file.architecture() {
            Architecture::Arm => Self::Arm,
            Architecture::Aarch64 => Self::Aarch64,
            _ => Self::No,
        }
    }
}

impl Entry {
    fn name(&self, files: &[&ElfFile<'_>]) -> Option<String> {
        let file = files.get(usize::from(self.source / 2))?;
        let name = if self.source.is_multiple_of(2) {
            file.symbol_by_index(self.index).ok()?.name_bytes().ok()?.to_vec()
        } else {
            use object::read::ObjectSymbolTable;
            file.dynamic_symbol_table()?.symbol_by_index(self.index).ok()?.name_bytes().ok()?.to_vec()
        };
        Some(String::from_utf8_lossy(&name).into_owned())
    }

    fn of<'data>(symbol: &impl ObjectSymbol<'data>, source: u8, marked: MarkedCode) -> Option<Self> {
        if !matches!(symbol.section(), SymbolSection::Section(_)) {
            return None;
        }
        let untyped = match symbol.kind() {
            SymbolKind::Text => false,
            // Labels of assembly code, as `_start` in some start files.
            SymbolKind::Label | SymbolKind::Unknown if symbol.size() == 0 => true,
            _ => return None,
        };
        let is_mark = || symbol.name_bytes().is_ok_and(|name| name.starts_with(b"$"));
        if untyped && marked != MarkedCode::No && is_mark() {
            return None;
        }
        let mode_bit = u64::from(marked == MarkedCode::Arm && !untyped);
        // One with a size before one without, then a global name before a weak one before a local one.
        let rank = 8 * u8::from(untyped || symbol.size() == 0)
            + 2 * u8::from(symbol.is_local())
            + u8::from(symbol.is_weak());
        Some(Self {
            address: symbol.address() & !mode_bit,
            size: symbol.size(),
            rank,
            source,
            index: symbol.index(),
        })
    }
}
