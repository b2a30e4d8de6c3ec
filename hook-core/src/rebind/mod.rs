//! Another function in the place of one that objects import: their tables of addresses are changed, and no code.
//!
//! Calls from one object to another go through a word that the dynamic linker fills (in the global offset table), and so
//! do pointers to functions in constant data. A [`Rebinding`] finds all words that hold the address of one function, in
//! all objects that it is given, and puts a replacement there:
//!
//! * those of relocations that name the function, also when the dynamic linker has not bound them yet;
//! * those that hold its address without naming it, in the object that defines it: relative relocations, packed ones
//!   (`DT_RELR`), and those that a resolver answers (`IRELATIVE`).
//!
//! A pointer that leads to an entry of a program's own procedure linkage table, as all do to a function whose address a program
//! takes that is no PIE, is left as it is: that entry goes by a word of the program, which is changed.
//!
//! What this doesn't see: calls within an object that go directly, addresses that a program asked for (`dlsym`) or
//! computed and keeps itself, and those that were copied from such a word before.
//!
//! ```no_run
//! use grapnel_hook::{module, rebind::Rebinding};
//!
//! extern "C" fn always_7() -> i32 {
//!     7
//! }
//! let debug = module::r_debug_of_this_process().expect("a dynamic linker");
//! // SAFETY: nothing is loaded or unloaded meanwhile.
//! let modules = unsafe { module::loaded_modules(debug) };
//! // SAFETY: the objects are relocated, and the types agree.
//! let mut rebinding = unsafe { Rebinding::find(&modules, b"getppid", always_7 as *const ()) }?;
//! let _getppid = rebinding.original();
//! // SAFETY: as above.
//! let report = unsafe { rebinding.update(&modules) };
//! println!("{} words changed", report.written);
//! # Ok::<(), grapnel_hook::rebind::NotDefined>(())
//! ```
//!
//! **Objects that are loaded later** are rebound by another [`Rebinding::update`] with a fresh list, when `dlopen` has
//! returned. That comes too late for their constructors: [`waiting::Hooks::rebind`](crate::waiting::Hooks::rebind) carries
//! a rebinding on to each object when it is loaded, before they run.
//!
//! # Safety
//! Words are written where relocations say that addresses are, with one atomic store each. Memory that is write-protected
//! after relocation (RELRO) is made writable for the store, and protected again as it was.

mod meant;
mod packed;
mod relocations;
mod right;

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::*};

use crate::{
    memory::maps::Maps,
    module::Module,
    symbol,
    sys::{self, EFAULT, Errno, PAGE},
};
use meant::{Meant, Verdict};
use right::Right;

/// What a relocation makes a word hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelocatedValue {
    /// The address of a symbol.
    Symbol,
    /// The same plus the addend.
    SymbolAndAddend,
    /// An address in the object itself.
    Address,
}

/// The words of an object by which it calls functions of other objects, or its own as others may replace them: calls `each` with the
/// place of a name among `names` and the address of a word that the dynamic linker fills with that function's.
pub fn for_each_word(module: &Module, names: &[&[u8]], each: &mut dyn FnMut(usize, usize)) {
    relocations::for_each(module, &mut |place| {
        let name = place.symbol.and_then(|index| symbol::name_at(module, index));
        if let Some(at) = name.and_then(|name| names.iter().position(|other| *other == name)) {
            each(at, place.at);
        }
    });
}

/// No object defines the function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no object defines {}", name.escape_ascii())]
pub struct NotDefined {
    /// Its name.
    pub name: Vec<u8>,
}

/// The address is in no object's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no object has code at {address:#x}")]
pub struct NotInAnObject {
    /// The address.
    pub address: usize,
}

/// A function whose place others take.
#[derive(Debug)]
pub struct Rebinding {
    meant: Meant,
    replacement: usize,
    words: Vec<Word>,
}

/// A word that was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    at: usize,
    old: usize,
}

/// Why a word can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotWritten {
    /// Another thread was rebinding for seconds.
    #[error("another thread is rebinding words")]
    Busy,
    /// This thread is rebinding, and a signal's handler came between.
    #[error("this thread is rebinding words already")]
    Nested,
    /// What may be done with the word isn't known, since `/proc/self/maps` can't be read.
    #[error("/proc/self/maps can't be read: {0}")]
    NoMaps(Errno),
    /// The relocation names an address at which no word lies.
    #[error("there is no word at this address")]
    NoWord,
    /// It lies in code, which doesn't become writable.
    #[error("it lies in code")]
    InCode,
    /// The kernel doesn't let its page be written.
    #[error("the kernel refuses to make its page writable: {0}")]
    Refused(Errno),
}

impl NotWritten {
    /// What the caller could do instead.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Busy => "try again when the other thread is done",
            Self::Nested => "rebind outside of handlers of signals",
            Self::NoMaps(_) => "mount /proc, or hook the function itself",
            Self::NoWord | Self::InCode => "hook the function itself",
            Self::Refused(_) => "allow mprotect in the security policy, or hook the function itself",
        }
    }
}

/// What became of the words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How many were changed.
    pub written: usize,
    /// Words that hold something else than the function or the replacement, put there by someone else; they are left
    /// alone.
    pub foreign: Vec<usize>,
    /// Words of [`Rebinding::of`] that the dynamic linker has not bound yet, and that it may bind to another function of
    /// the name; they are left alone. They can be decided once they have been used.
    pub undecided: Vec<usize>,
    /// Words that could not be written, and why.
    pub failed: Vec<(usize, NotWritten)>,
}

impl Rebinding {
    /// Finds the function. Nothing is changed.
    ///
    /// # Errors
    /// If none of the objects defines it.
    ///
    /// # Safety
    /// The objects are loaded and relocated; a resolver of the function runs code of its object. Should any of them be
    /// unloaded, the next call gets a list without it.
    pub unsafe fn find(modules: &[Module], name: &[u8], replacement: *const ()) -> Result<Self, NotDefined> {
        let mut meant = Meant::by_name(name);
        // SAFETY: the caller's promise.
        unsafe { meant.learn(modules.iter()) };
        match meant.definitions.is_empty() {
            true => Err(NotDefined { name: meant.into_name() }),
            false => Ok(Self { meant, replacement: replacement as usize, words: Vec::new() }),
        }
    }

    /// For the function at an address alone, whatever else is called so: words that hold its address, and those that the
    /// dynamic linker has not bound yet, if it can bind them to nothing else. Nothing is changed.
    ///
    /// # Errors
    /// If the address is in none of the objects.
    ///
    /// # Safety
    /// As [`Self::find`].
    pub unsafe fn of(
        modules: &[Module],
        function: *const (),
        replacement: *const (),
    ) -> Result<Self, NotInAnObject> {
        let holder = |address| modules.iter().find(|module| module.holds_code(address));
        let address = function as usize;
        let home = holder(address).ok_or(NotInAnObject { address })?;
        // SAFETY: the caller's promise.
        let address = unsafe { stood_for(modules, home, address) }.unwrap_or(address);
        let home = holder(address).unwrap_or(home);
        // SAFETY: the caller's promise.
        let meant = unsafe { Meant::by_address(home, address) };
        Ok(Self { meant, replacement: replacement as usize, words: Vec::new() })
    }

    /// The function that is replaced; by name, that of the first object that defines it, as the dynamic linker chooses.
    pub fn original(&self) -> *const () {
        self.meant.definitions.first().map_or(core::ptr::null(), |&at| at as *const ())
    }

    /// How many words hold the replacement.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    /// Puts the replacement into all words of the objects that hold the function and were not changed yet. Words of
    /// objects that are no longer in the list are forgotten.
    ///
    /// # Safety
    /// As [`Self::find`]. The replacement has the function's ABI and stays loaded. No object is loaded or unloaded
    /// meanwhile.
    pub unsafe fn update(&mut self, modules: &[Module]) -> Report {
        self.forget_others(modules);
        // SAFETY: the caller's promise.
        unsafe { self.add(modules.iter()) }
    }

    /// Forgets the words of objects that are not in this list, which are no longer loaded.
    pub(crate) fn forget_others(&mut self, modules: &[Module]) {
        self.words.retain(|word| holds(modules, word.at));
    }

    /// Puts the replacement into the words of these objects, as [`Self::update`] does, and forgets none.
    ///
    /// # Safety
    /// As [`Self::update`].
    pub(crate) unsafe fn add<'a>(&mut self, modules: impl Iterator<Item = &'a Module> + Clone) -> Report {
        // SAFETY: the caller's promise.
        unsafe { self.meant.learn(modules.clone()) };
        // Before the mappings are read, which tell the rights.
        let right = Right::begin();
        let maps = Maps::read();
        let mut report = Report::default();
        for module in modules.clone() {
            relocations::for_each(module, &mut |place| {
                let Some(old) = module.read::<usize>(place.at) else { return };
                if old == self.replacement {
                    return;
                }
                match self.meant.judge_among(modules.clone(), module, &place, old, self.replacement) {
                    Verdict::Change => {}
                    Verdict::Leave => return,
                    Verdict::Foreign => return report.foreign.push(place.at),
                    Verdict::Undecided => return report.undecided.push(place.at),
                }
                // SAFETY: a relocation says that the word holds a function's address; the rest is the caller's promise.
                match unsafe { store(&right, &maps, place.at, self.replacement) } {
                    Ok(()) => {
                        report.written += 1;
                        // Someone may have put the function back into a word that was changed before.
                        if !self.words.iter().any(|word| word.at == place.at) {
                            self.words.push(Word { at: place.at, old });
                        }
                    }
                    Err(why) => report.failed.push((place.at, why)),
                }
            });
        }
        report
    }

    /// Puts back what was in the words, as far as their objects are in the list and they hold the replacement. A word whose
    /// memory is gone is forgotten, also if its object is in the list.
    ///
    /// # Safety
    /// As [`Self::update`].
    pub unsafe fn undo(&mut self, modules: &[Module]) -> Report {
        let right = Right::begin();
        let maps = Maps::read();
        let mut report = Report::default();
        let mut left = Vec::new();
        for word in self.words.drain(..) {
            // An object of the list may be gone all the same.
            let found = if holds(modules, word.at) { found(&maps, word.at) } else { None };
            match found {
                Some(found) if found == self.replacement => {
                    // SAFETY: what was there before, in an object that is loaded.
                    match unsafe { store(&right, &maps, word.at, word.old) } {
                        Ok(()) => report.written += 1,
                        Err(why) => {
                            report.failed.push((word.at, why));
                            left.push(word);
                        }
                    }
                }
                Some(_) => report.foreign.push(word.at),
                None => {}
            }
        }
        self.words = left;
        report
    }
}

/// The function for which an address of an object stands, an entry of its procedure linkage table.
///
/// # Safety
/// As [`Rebinding::find`].
unsafe fn stood_for(modules: &[Module], home: &Module, address: usize) -> Option<usize> {
    let name = symbol::name_of_stand_in(home, address)?;
    let called = bound(home, name);
    let mut first = None;
    let mut is_called = false;
    for module in modules {
        symbol::for_each_version(module, name, &mut |symbol| {
            // SAFETY: the caller's promise.
            let function = unsafe { symbol.resolve() } as usize;
            is_called |= called == Some(function);
            first = first.or(Some(function).filter(|_| !symbol.hidden));
        });
    }
    // Until the dynamic linker has bound it, that of the first object counts, which it will choose.
    if is_called { called } else { first }
}

/// The function that an object calls by this name: what a word holds whose relocation names it.
pub(crate) fn bound(module: &Module, name: &[u8]) -> Option<usize> {
    let mut found = None;
    relocations::for_each(module, &mut |place| {
        if found.is_none() && place.symbol.and_then(|index| symbol::name_at(module, index)) == Some(name) {
            found = module.read::<usize>(place.at);
        }
    });
    found
}

/// Of each object, whether what the dynamic linker protects against writing once it has relocated it (RELRO) is so, or nothing is to be.
///
/// For whoever rebinds while other threads open libraries: words of an object of which that isn't so yet are left to a later
/// [`Rebinding::update`]. A store into such a page would meet the protection that comes just then. Where `/proc/self/maps` can't be read, `true`
/// of all: nothing is stored then.
pub fn are_protected(modules: &[Module]) -> Vec<bool> {
    let maps = Maps::read().ok();
    let is_writable =
        |at| maps.as_ref().is_some_and(|maps| maps.find(at).is_some_and(|mapping| mapping.write));
    modules.iter().map(|module| !module.protected().is_some_and(|range| is_writable(range.start))).collect()
}

/// Whether the dynamic linker has relocated the object.
pub(crate) fn is_relocated(module: &Module) -> bool {
    relocations::are_done(module)
}

fn holds(modules: &[Module], at: usize) -> bool {
    modules.iter().any(|module| module.can_read(at, size_of::<usize>()))
}

/// What is in a word, if it is there.
fn found(maps: &Result<Maps, Errno>, at: usize) -> Option<usize> {
    let mut word = [0; size_of::<usize>()];
    let copied = match sys::copy_memory(at, &mut word) {
        // Some sandboxes refuse the call.
        Err(errno) if errno != EFAULT => {
            maps.as_ref().ok().filter(|maps| maps.readable(at, word.len()) == word.len())?;
            // SAFETY: the word is mapped and readable, and any bytes are a value.
            return Some(unsafe { (at as *const usize).read_unaligned() });
        }
        copied => copied.unwrap_or(0),
    };
    (copied == word.len()).then_some(usize::from_ne_bytes(word))
}

/// Stores an address.
///
/// # Safety
/// The word is one that may hold it, in memory of an object that stays mapped meanwhile.
unsafe fn store(
    right: &Result<Right, Errno>,
    maps: &Result<Maps, Errno>,
    at: usize,
    value: usize,
) -> Result<(), NotWritten> {
    right.as_ref().map_err(|errno| match *errno {
        Errno(libc::EDEADLK) => NotWritten::Nested,
        _ => NotWritten::Busy,
    })?;
    let maps = maps.as_ref().map_err(|errno| NotWritten::NoMaps(*errno))?;
    let is_whole = at.is_multiple_of(size_of::<usize>());
    let mapping = maps.find(at).filter(|_| is_whole).ok_or(NotWritten::NoWord)?;
    let page = at & !(PAGE - 1);
    let rights = mapping.rights();
    if !mapping.write {
        if mapping.execute {
            // Such a word lies in code; no page becomes writable and executable.
            return Err(NotWritten::InCode);
        }
        // SAFETY: a right is added to data.
        unsafe { sys::mprotect(page, PAGE, rights | libc::PROT_WRITE) }.map_err(NotWritten::Refused)?;
    }
    // SAFETY: the word is mapped, writable and aligned; others read it as a whole.
    let word = unsafe { AtomicUsize::from_ptr(at as *mut usize) };
    let old = word.swap(value, AcqRel);
    if !mapping.write {
        // SAFETY: the rights are what they were.
        unsafe { sys::mprotect(page, PAGE, rights) }.map_err(|errno| {
            word.store(old, Release);
            NotWritten::Refused(errno)
        })?;
    }
    Ok(())
}
