//! The dynamic symbol table of a loaded object, and its two kinds of hash table.
//!
//! A table is what its object says; one that leads outside the object's segments ends there, and no chain is followed
//! for ever.

use core::ops::Range;

use super::{Symbol, SymbolKind};
use crate::{
    elf::{self, Sym},
    module::Module,
};

/// Longer chains than any table has; a corrupt one ends here.
const CHAIN_MAX: usize = 1 << 20;

pub(super) struct Table<'a> {
    pub(super) module: &'a Module,
}

impl<'a> Table<'a> {
    fn raw(&self, index: usize) -> Option<Sym> {
        let at = self.module.dynamic().symbols?.checked_add(index.checked_mul(size_of::<Sym>())?)?;
        self.module.read(at)
    }

    /// The name of the symbol with this index, whether the object defines it or not.
    pub(super) fn name(&self, index: usize) -> Option<&'a [u8]> {
        self.module.string(self.raw(index)?.st_name as usize)
    }

    /// The symbol, if the object defines it and it has an address.
    pub(super) fn symbol(&self, index: usize) -> Option<Symbol> {
        let hidden = || self.version_index(index).is_some_and(|v| v & elf::VERSION_HIDDEN != 0);
        self.defined(self.raw(index)?, hidden)
    }

    fn defined(&self, raw: Sym, hidden: impl FnOnce() -> bool) -> Option<Symbol> {
        let kind = SymbolKind::of(raw.st_info)?;
        if matches!(raw.st_shndx, elf::SHN_UNDEF | elf::SHN_ABS) {
            return None;
        }
        let addr = self.module.bias().wrapping_add(raw.st_value);
        Some(Symbol { addr, size: raw.st_size, kind, hidden: hidden() })
    }

    /// The addresses of every function that the object defines and whose length its symbol has.
    pub(super) fn functions(&self) -> impl Iterator<Item = Range<usize>> {
        let symbols = (0..self.count().unwrap_or(0)).map_while(|index| self.raw(index));
        symbols.filter_map(|raw| self.defined(raw, || false)?.function_range())
    }

    /// Where the pointers of all objects to a function of another object lead, if this object was linked for an address of its own
    /// and takes the function's: to an entry of its procedure linkage table, whose address the undefined symbol has (psABIs, "Function
    /// Addresses").
    pub(super) fn stand_in(&self, index: usize) -> Option<usize> {
        let raw = self.raw(index)?;
        let imported = raw.st_shndx == elf::SHN_UNDEF && raw.st_value != 0;
        let function = SymbolKind::of(raw.st_info).is_some_and(SymbolKind::is_function);
        (imported && function).then(|| self.module.bias().wrapping_add(raw.st_value))
    }

    /// What says which version the symbol has; its highest bit, that it is a hidden one.
    pub(super) fn version_index(&self, index: usize) -> Option<u16> {
        self.module.read(self.module.dynamic().versions?.checked_add(index.checked_mul(2)?)?)
    }

    /// Calls `each` with the index of every symbol of this name.
    pub(super) fn for_each_of_name(&self, name: &[u8], each: &mut dyn FnMut(usize)) {
        // A table that ends early gives what was found until then.
        let _ = if self.module.dynamic().gnu_hash.is_some() {
            self.walk_gnu_hash(name, each)
        } else {
            self.walk_hash(name, each)
        };
    }

    fn offer(&self, index: usize, name: &[u8], each: &mut dyn FnMut(usize)) {
        if self.name(index) == Some(name) {
            each(index);
        }
    }

    /// `DT_GNU_HASH`: `nbuckets, first, words, shift, bloom[words], buckets[nbuckets], chain[]`. A chain ends with the
    /// first entry whose lowest bit is set; the other bits are those of the hash.
    fn walk_gnu_hash(&self, name: &[u8], each: &mut dyn FnMut(usize)) -> Option<()> {
        let table = GnuHash::read(self.module)?;
        let hash = gnu_hash(name);
        let bucket = (hash as usize).checked_rem(table.buckets)?;
        let first = self.module.read::<u32>(table.bucket_at(bucket))? as usize;
        if first < table.first {
            return None;
        }
        for index in (first..).take(CHAIN_MAX) {
            let entry = self.module.read::<u32>(table.chain_at(index))?;
            if (entry ^ hash) >> 1 == 0 {
                self.offer(index, name, each);
            }
            if entry & 1 != 0 {
                break;
            }
        }
        Some(())
    }

    /// `DT_HASH`: `nbucket, nchain, bucket[nbucket], chain[nchain]`; 0 ends a chain.
    fn walk_hash(&self, name: &[u8], each: &mut dyn FnMut(usize)) -> Option<()> {
        let at = self.module.dynamic().hash?;
        let word = |i: usize| self.module.read::<u32>(at.wrapping_add(i.wrapping_mul(4))).map(|w| w as usize);
        let buckets = word(0)?;
        let mut index = word(2 + (sysv_hash(name) as usize).checked_rem(buckets)?)?;
        for _ in 0..CHAIN_MAX {
            if index == 0 {
                break;
            }
            self.offer(index, name, each);
            index = word(buckets.wrapping_add(2).wrapping_add(index))?;
        }
        Some(())
    }

    /// How many symbols there are, at most. The GNU table doesn't say: the last chain ends with the last symbol.
    pub(super) fn count(&self) -> Option<usize> {
        if let Some(at) = self.module.dynamic().hash {
            return Some(self.module.read::<u32>(at.checked_add(4)?)? as usize);
        }
        let table = GnuHash::read(self.module)?;
        let mut last = 0;
        for bucket in 0..table.buckets.min(CHAIN_MAX) {
            last = last.max(self.module.read::<u32>(table.bucket_at(bucket))? as usize);
        }
        if last < table.first {
            return Some(table.first);
        }
        for index in (last..).take(CHAIN_MAX) {
            if self.module.read::<u32>(table.chain_at(index))? & 1 != 0 {
                return Some(index + 1);
            }
        }
        None
    }

    /// The indices of all symbols that can be read.
    pub(super) fn indices(&self) -> impl Iterator<Item = usize> {
        (0..self.count().unwrap_or(0)).take_while(|&index| self.raw(index).is_some())
    }
}

struct GnuHash {
    buckets: usize,
    first: usize,
    buckets_at: usize,
}

impl GnuHash {
    fn read(module: &Module) -> Option<Self> {
        let at = module.dynamic().gnu_hash?;
        let word = |i: usize| module.read::<u32>(at.wrapping_add(i.wrapping_mul(4))).map(|w| w as usize);
        let (buckets, first, bloom) = (word(0)?, word(1)?, word(2)?);
        Some(Self {
            buckets,
            first,
            buckets_at: at.wrapping_add(16).wrapping_add(bloom.wrapping_mul(size_of::<usize>())),
        })
    }

    fn bucket_at(&self, bucket: usize) -> usize {
        self.buckets_at.wrapping_add(bucket.wrapping_mul(4))
    }

    fn chain_at(&self, index: usize) -> usize {
        let entry = self.buckets.wrapping_add(index.wrapping_sub(self.first));
        self.buckets_at.wrapping_add(entry.wrapping_mul(4))
    }
}

/// `h * 33 + c` over the bytes, from 5381.
fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |h: u32, &c| h.wrapping_mul(33).wrapping_add(u32::from(c)))
}

/// The hash of the System V ABI, "Hash Table".
fn sysv_hash(name: &[u8]) -> u32 {
    name.iter().fold(0u32, |h, &c| {
        let h = (h << 4).wrapping_add(u32::from(c));
        let high = h & 0xf000_0000;
        (h ^ (high >> 24)) & !high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_documents() {
        assert_eq!(gnu_hash(b""), 0x1505);
        assert_eq!(gnu_hash(b"printf"), 0x156b_2bb8);
        assert_eq!(sysv_hash(b"printf"), 0x0779_05a6);
    }
}
