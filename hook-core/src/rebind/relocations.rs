//! The words of an object that the dynamic linker fills with addresses.

use super::{RelocatedValue, packed};
use crate::{
    elf::{self, Rel, Rela},
    module::Module,
    native,
};

/// Longer tables than any object has.
const TABLE_MAX: usize = 1 << 26;

/// A word that a relocation fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Where it is.
    pub(super) at: usize,
    /// The index of the symbol whose address it holds; `None` if it holds an address of the object itself.
    pub(super) symbol: Option<usize>,
}

/// Calls `each` with every word that may hold a function's address.
pub(super) fn for_each(module: &Module, each: &mut dyn FnMut(Place)) {
    let dynamic = module.dynamic();
    rela(module, dynamic.rela, each);
    rel(module, dynamic.rel, each);
    match dynamic.plt_kind {
        elf::DT_RELA => rela(module, dynamic.plt, each),
        elf::DT_REL => rel(module, dynamic.plt, each),
        _ => {}
    }
    relr(module, dynamic.relr, each);
    androids(module, dynamic.packed, each);
}

/// The first word that a relocation makes the address of the symbol with this index.
pub(super) fn of_symbol(module: &Module, index: usize) -> Option<Place> {
    let mut found = None;
    for_each(module, &mut |place| found = found.or(Some(place).filter(|place| place.symbol == Some(index))));
    found
}

/// Whether the dynamic linker has relocated the object: whether words that it makes addresses of the object hold such.
/// `false` if there are none.
pub(super) fn are_done(module: &Module) -> bool {
    if module.bias() == 0 {
        // It was linked for where it lies.
        return true;
    }
    let mut done = false;
    for_each(module, &mut |place| {
        done |=
            place.symbol.is_none() && module.read::<usize>(place.at).is_some_and(|word| module.holds(word));
    });
    done
}

fn rela(module: &Module, (table, len): (Option<usize>, usize), each: &mut dyn FnMut(Place)) {
    let Some(table) = table else { return };
    for offset in (0..len.min(TABLE_MAX)).step_by(size_of::<Rela>()) {
        let Some(entry) = module.read::<Rela>(table.wrapping_add(offset)) else { return };
        one(module, entry.rel, entry.addend, each);
    }
}

/// The addends are in the words, and no longer known once those are relocated: what a word holds then shows whether it is
/// a function's address.
fn rel(module: &Module, (table, len): (Option<usize>, usize), each: &mut dyn FnMut(Place)) {
    let Some(table) = table else { return };
    for offset in (0..len.min(TABLE_MAX)).step_by(size_of::<Rel>()) {
        let Some(entry) = module.read::<Rel>(table.wrapping_add(offset)) else { return };
        one(module, entry, 0, each);
    }
}

fn androids(module: &Module, (table, len): (Option<usize>, usize), each: &mut dyn FnMut(Place)) {
    let Some(table) = table else { return };
    let mut offsets = 0..len.min(TABLE_MAX);
    let mut next = || module.read::<u8>(table.wrapping_add(offsets.next()?));
    // What is no such table has no relocations that anybody knows.
    let _ = packed::unpack(&mut next, TABLE_MAX, &mut |entry| one(module, entry.rel, entry.addend, each));
}

fn one(module: &Module, entry: Rel, addend: isize, each: &mut dyn FnMut(Place)) {
    let at = module.bias().wrapping_add(entry.offset);
    let (symbol, kind) = entry.symbol_and_kind();
    match native::relocated_value(kind) {
        Some(RelocatedValue::Address) => each(Place { at, symbol: None }),
        Some(RelocatedValue::Symbol) => each(Place { at, symbol: Some(symbol) }),
        // An address behind a function's start is no call's.
        Some(RelocatedValue::SymbolAndAddend) if addend == 0 => each(Place { at, symbol: Some(symbol) }),
        _ => {}
    }
}

/// Packed relative relocations (generic ABI, `SHT_RELR`): an even entry is the address of a word, and the bits of an odd
/// one, from its second on, say which of the words behind the last one are relocated too.
fn relr(module: &Module, (table, len): (Option<usize>, usize), each: &mut dyn FnMut(Place)) {
    const WORD: usize = size_of::<usize>();
    let Some(table) = table else { return };
    let mut next = 0;
    for offset in (0..len.min(TABLE_MAX)).step_by(WORD) {
        let Some(entry) = module.read::<usize>(table.wrapping_add(offset)) else { return };
        if entry & 1 == 0 {
            let at = module.bias().wrapping_add(entry);
            each(Place { at, symbol: None });
            next = at.wrapping_add(WORD);
            continue;
        }
        let bits = usize::BITS as usize - 1;
        for i in (0..bits).filter(|i| entry >> (i + 1) & 1 != 0) {
            each(Place { at: next.wrapping_add(i * WORD), symbol: None });
        }
        next = next.wrapping_add(bits * WORD);
    }
}
