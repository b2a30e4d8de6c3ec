//! Symbols of loaded objects.
//!
//! The functions here look in the tables that the dynamic linker itself uses, where they are mapped: what an object
//! exports is there. They neither lock nor allocate. Every version of a symbol counts: one kept for old programs
//! (`cfree@GLIBC_2.2.5`) and a private one (`GLIBC_PRIVATE`) are found as well.
//!
//! What an object doesn't export is in the symbol table of its file, of its separate debug file, or in what distributions
//! leave of it (`.gnu_debugdata`). A [`Lookup`] finds functions there too, with the feature `files`, on by default.
//!
//! # Safety
//! A symbol's address is taken from the object's own table; that it is a function of the right type, and that the object
//! is still loaded, is for whoever calls [`Symbol::resolve`] to know.

#[cfg(feature = "files")]
pub mod files;
mod lookup;
mod table;
mod version;

use alloc::vec::Vec;
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::*},
};

pub use lookup::{Function, Lookup, LookupError};
use table::Table;

use grapnel_relocator::CodeAddr;

use crate::{elf, module::Module, native, sys};

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

impl SymbolKind {
    /// What a symbol's `st_info` says. A thread-local variable has no address.
    fn of(info: u8) -> Option<Self> {
        match info & 0xf {
            elf::STT_FUNC => Some(Self::Function),
            elf::STT_GNU_IFUNC => Some(Self::Indirect),
            elf::STT_OBJECT => Some(Self::Object),
            elf::STT_TLS => None,
            _ => Some(Self::Other),
        }
    }

    fn is_function(self) -> bool {
        matches!(self, Self::Function | Self::Indirect)
    }
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

    /// Whether it is a function's, directly or not.
    pub(crate) fn is_function(&self) -> bool {
        self.kind.is_function()
    }

    /// The addresses that it says it has; with a size of 0 its first alone.
    pub fn range(&self) -> Range<usize> {
        self.addr..self.addr.saturating_add(self.size.max(1))
    }

    /// The addresses of a function's code, if its length is known.
    pub(crate) fn function_range(&self) -> Option<Range<usize>> {
        if !self.is_function() || self.size == 0 {
            return None;
        }
        // A pointer to T32 code has a bit that its address lacks.
        let start = native::code_at(CodeAddr(self.addr as u64)).1.0 as usize;
        Some(start..start.checked_add(self.size)?)
    }

    /// The function that is really called: the symbol's own address, or what the resolver of an indirect one returns.
    ///
    /// # Safety
    /// The object is loaded and relocated. A resolver runs code of that object.
    pub unsafe fn resolve(&self) -> *const () {
        match self.kind {
            SymbolKind::Indirect => {
                // SAFETY: an indirect symbol's address is a function of this type; what it doesn't want of the arguments
                // it ignores, as the caller's registers.
                let resolver: extern "C" fn(usize, &Capabilities) -> *const () =
                    unsafe { core::mem::transmute(self.addr) };
                let capabilities = Capabilities::read();
                resolver(capabilities.hwcap | native::RESOLVER_FLAG, &capabilities)
            }
            _ => self.pointer(),
        }
    }
}

/// What a resolver is told of the processor: nothing on x86-64, `AT_HWCAP` on ARM, and on AArch64 both arguments (its
/// System V ABI, "GNU Indirect Functions").
#[repr(C)]
struct Capabilities {
    size: usize,
    hwcap: usize,
    hwcap2: usize,
}

/// What was read: they don't change while the process runs.
static KNOWN: AtomicBool = AtomicBool::new(false);
static HWCAP: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

impl Capabilities {
    fn read() -> Self {
        if !KNOWN.load(Acquire) {
            for (slot, kind) in HWCAP.iter().zip([libc::AT_HWCAP, libc::AT_HWCAP2]) {
                slot.store(sys::auxiliary(kind as usize).unwrap_or(0), Relaxed);
            }
            KNOWN.store(true, Release);
        }
        let [hwcap, hwcap2] = HWCAP.each_ref().map(|slot| slot.load(Relaxed));
        Self { size: size_of::<Self>(), hwcap, hwcap2 }
    }
}

/// Of several versions the default one, else the first hidden one.
#[derive(Default)]
struct Best(Option<Symbol>);

impl Best {
    fn offer(&mut self, symbol: Symbol) {
        if self.0.is_none_or(|best| best.hidden && !symbol.hidden) {
            self.0 = Some(symbol);
        }
    }
}

/// Finds a symbol by its name. Of several versions the default one is taken, else the first hidden one.
pub fn find(module: &Module, name: &[u8]) -> Option<Symbol> {
    let mut best = Best::default();
    for_each_version(module, name, &mut |symbol| best.offer(symbol));
    best.0
}

/// Finds a symbol by its name and its version, such as `memcpy` and `GLIBC_2.2.5`.
pub fn find_version(module: &Module, name: &[u8], wanted: &[u8]) -> Option<Symbol> {
    let table = Table { module };
    let mut best = Best::default();
    table.for_each_of_name(name, &mut |index| {
        if let (Some(symbol), true) = (table.symbol(index), version::of(&table, index) == Some(wanted)) {
            best.offer(symbol);
        }
    });
    best.0
}

/// Calls `each` with every version of a name that the object defines.
pub fn for_each_version(module: &Module, name: &[u8], each: &mut dyn FnMut(Symbol)) {
    let table = Table { module };
    table.for_each_of_name(name, &mut |index| {
        if let Some(symbol) = table.symbol(index) {
            each(symbol);
        }
    });
}

/// Calls `each` with every symbol that the object defines, in the order of its table.
pub fn for_each(module: &Module, each: &mut dyn FnMut(&[u8], Symbol)) {
    let table = Table { module };
    for index in table.indices() {
        if let (Some(symbol), Some(name)) = (table.symbol(index), table.name(index)) {
            each(name, symbol);
        }
    }
}

/// The names of all symbols of an object, those included that it takes from others: each ends with a 0, and may be the end of a
/// longer one. Of an object without a table, none.
pub fn names(module: &Module) -> &[u8] {
    module.strings().unwrap_or(&[])
}

/// Finds the exported function around an address: its name, and its symbol. All symbols are looked at.
pub fn function_at(module: &Module, address: usize) -> Option<(&[u8], Symbol)> {
    let table = Table { module };
    let mut best: Option<(usize, Symbol)> = None;
    for index in table.indices() {
        let Some(symbol) = table.symbol(index) else { continue };
        let holds = symbol.kind.is_function() && symbol.range().contains(&address);
        // The one that begins last is the innermost.
        if holds && best.is_none_or(|(_, best)| best.addr < symbol.addr) {
            best = Some((index, symbol));
        }
    }
    let (index, symbol) = best?;
    Some((table.name(index)?, symbol))
}

/// The addresses of every function that the object exports and whose length its symbol has.
pub(crate) fn functions(module: &Module) -> Vec<Range<usize>> {
    /// More than that have room made for them as they come: who knows what a broken table says.
    const MOST: usize = 1 << 16;
    let table = Table { module };
    let mut all = Vec::with_capacity(table.count().unwrap_or(0).min(MOST));
    all.extend(table.functions());
    all
}

/// Calls `each` with what stands in this object for a function of that name of another one: the symbol's index, and the address
/// that all pointers to the function hold.
pub(crate) fn for_each_stand_in(module: &Module, name: &[u8], each: &mut dyn FnMut(usize, usize)) {
    let table = Table { module };
    table.for_each_of_name(name, &mut |index| {
        if let Some(at) = table.stand_in(index) {
            each(index, at);
        }
    });
}

/// The name of the function of another object for which an address of this one stands.
pub(crate) fn name_of_stand_in(module: &Module, address: usize) -> Option<&[u8]> {
    let table = Table { module };
    let index = table.indices().find(|index| table.stand_in(*index) == Some(address))?;
    table.name(index)
}

/// The name of the symbol with this index, whether the object defines it or not.
pub(crate) fn name_at(module: &Module, index: usize) -> Option<&[u8]> {
    Table { module }.name(index)
}
