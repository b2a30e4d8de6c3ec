//! Symbols of loaded objects, looked up in the tables that the dynamic linker itself uses, where they are mapped.
//!
//! Neither locks nor allocates. Every version of a symbol counts: one kept for old programs (`cfree@GLIBC_2.2.5`) and a
//! private one (`GLIBC_PRIVATE`) are found as well.
//!
//! # Safety
//! A symbol's address is taken from the object's own table; that it is a function of the right type, and that the object
//! is still loaded, is for whoever calls [`Symbol::resolve`] to know.

use crate::{
    elf::{self, Sym},
    module::Module,
};

/// Longer chains than any table has; a corrupt one ends here.
const CHAIN_MAX: usize = 1 << 20;

/// What a symbol stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SymbolKind {
    /// A function.
    Function,
    /// A function that returns the address of the function that is really called (`STT_GNU_IFUNC`).
    Indirect,
    /// Data.
    Object,
    /// Anything else, such as labels of hand-written assembly.
    Other,
}

/// A symbol that an object defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Symbol {
    /// Where it is.
    pub addr: usize,
    /// How many bytes it has; 0 when that isn't known.
    pub size: usize,
    /// What it stands for.
    pub kind: SymbolKind,
    /// A version kept for old programs: new ones are linked to another, or to none.
    pub hidden: bool,
}

impl Symbol {
    /// The address as a pointer.
    pub fn pointer(&self) -> *const () {
        self.addr as *const ()
    }

    /// The function that is really called: the symbol's own address, or what the resolver of an indirect one returns.
    ///
    /// # Safety
    /// The object is loaded and relocated. A resolver runs code of that object.
    pub unsafe fn resolve(&self) -> *const () {
        match self.kind {
            SymbolKind::Indirect => {
                // SAFETY: an indirect symbol's address is a function of this type (System V ABI, x86-64 psABI 3.5.4;
                // the arguments that other machines pass are ignored by resolvers that don't want them).
                let resolver: extern "C" fn() -> *const () = unsafe { core::mem::transmute(self.addr) };
                resolver()
            }
            _ => self.pointer(),
        }
    }
}

/// Finds a symbol by its name. Of several versions the default one is taken, else the first hidden one.
pub fn find(module: &Module, name: &[u8]) -> Option<Symbol> {
    let mut best: Option<Symbol> = None;
    for_each_version(module, name, &mut |symbol| {
        if best.is_none_or(|b| b.hidden && !symbol.hidden) {
            best = Some(symbol);
        }
    });
    best
}

/// Calls `each` with every version of a name that the object defines.
pub fn for_each_version(module: &Module, name: &[u8], each: &mut dyn FnMut(Symbol)) {
    let table = Table { module };
    // A table that ends early gives what was found until then.
    let _ = if module.dynamic().gnu_hash.is_some() {
        table.walk_gnu_hash(name, each)
    } else {
        table.walk_hash(name, each)
    };
}

/// Calls `each` with every symbol that the object defines, in the order of its table.
pub fn for_each(module: &Module, each: &mut dyn FnMut(&[u8], Symbol)) {
    let table = Table { module };
    for index in 0..table.count().unwrap_or(0) {
        if let (Some(symbol), Some(name)) = (table.symbol(index), table.name(index)) {
            each(name, symbol);
        }
    }
}

/// The name of the symbol with this index, whether the object defines it or not.
pub(crate) fn name_at(module: &Module, index: usize) -> Option<&[u8]> {
    Table { module }.name(index)
}

struct Table<'a> {
    module: &'a Module,
}

impl<'a> Table<'a> {
    fn raw(&self, index: usize) -> Option<Sym> {
        let at = self.module.dynamic().symbols?.checked_add(index.checked_mul(size_of::<Sym>())?)?;
        self.module.read(at)
    }

    fn name(&self, index: usize) -> Option<&'a [u8]> {
        let dynamic = self.module.dynamic();
        let start = dynamic.strings?;
        let offset = self.raw(index)?.st_name as usize;
        let bytes = self.module.slice(start, start.checked_add(dynamic.strings_len))?.get(offset..)?;
        bytes.get(..bytes.iter().position(|&b| b == 0)?)
    }

    /// The symbol, if the object defines it and it has an address.
    fn symbol(&self, index: usize) -> Option<Symbol> {
        let raw = self.raw(index)?;
        let kind = match raw.st_info & 0xf {
            elf::STT_FUNC => SymbolKind::Function,
            elf::STT_GNU_IFUNC => SymbolKind::Indirect,
            elf::STT_OBJECT => SymbolKind::Object,
            elf::STT_TLS => return None,
            _ => SymbolKind::Other,
        };
        if matches!(raw.st_shndx, elf::SHN_UNDEF | elf::SHN_ABS) {
            return None;
        }
        let hidden = self.module.dynamic().versions.is_some_and(|at| {
            self.module.read::<u16>(at.wrapping_add(2 * index)).is_some_and(|v| v & elf::VERSION_HIDDEN != 0)
        });
        let addr = self.module.bias().wrapping_add(raw.st_value as usize);
        Some(Symbol { addr, size: raw.st_size as usize, kind, hidden })
    }

    fn offer(&self, index: usize, name: &[u8], each: &mut dyn FnMut(Symbol)) {
        if self.name(index) == Some(name)
            && let Some(symbol) = self.symbol(index)
        {
            each(symbol);
        }
    }

    /// `DT_GNU_HASH`: `nbuckets, first, words, shift, bloom[words], buckets[nbuckets], chain[]`. A chain ends with the
    /// first entry whose lowest bit is set; the other bits are those of the hash.
    fn walk_gnu_hash(&self, name: &[u8], each: &mut dyn FnMut(Symbol)) -> Option<()> {
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
    fn walk_hash(&self, name: &[u8], each: &mut dyn FnMut(Symbol)) -> Option<()> {
        let at = self.module.dynamic().hash?;
        let word = |i: usize| self.module.read::<u32>(at.wrapping_add(4 * i)).map(|w| w as usize);
        let buckets = word(0)?;
        let mut index = word(2 + (sysv_hash(name) as usize).checked_rem(buckets)?)?;
        for _ in 0..CHAIN_MAX {
            if index == 0 {
                break;
            }
            self.offer(index, name, each);
            index = word(2 + buckets.wrapping_add(index))?;
        }
        Some(())
    }

    /// How many symbols there are. The GNU table doesn't say: the last chain ends with the last symbol.
    fn count(&self) -> Option<usize> {
        if let Some(at) = self.module.dynamic().hash {
            return Some(self.module.read::<u32>(at + 4)? as usize);
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
}

struct GnuHash {
    buckets: usize,
    first: usize,
    buckets_at: usize,
}

impl GnuHash {
    fn read(module: &Module) -> Option<Self> {
        let at = module.dynamic().gnu_hash?;
        let word = |i: usize| module.read::<u32>(at.wrapping_add(4 * i)).map(|w| w as usize);
        let (buckets, first, bloom) = (word(0)?, word(1)?, word(2)?);
        Some(Self {
            buckets,
            first,
            buckets_at: at.wrapping_add(16).wrapping_add(bloom * size_of::<usize>()),
        })
    }

    fn bucket_at(&self, bucket: usize) -> usize {
        self.buckets_at.wrapping_add(4 * bucket)
    }

    fn chain_at(&self, index: usize) -> usize {
        self.buckets_at.wrapping_add(4 * self.buckets).wrapping_add(4 * index.wrapping_sub(self.first))
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
