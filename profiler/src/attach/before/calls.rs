//! Where an allocator's code lies, by which it is known that a thread is in the middle of it.

use super::super::native::{Registers, address};
use super::library::Library;
use super::object::Object;
use super::{Unknown, View};
use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSymbol, ReadCache, SymbolKind};
use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;

/// Words of a stack that are looked at: what `malloc` calls without a lock keeps no more before it copies, or calls the kernel.
const WORDS: usize = 4;
/// The same where it waits for a lock.
const WORDS_OF_LOCKS: usize = 12;

/// No allocator has more code.
const MOST: u64 = 4 << 20;

/// An allocator's code.
#[derive(Debug)]
pub(super) struct Calls {
    code: Vec<Range<u64>>,
    /// The C library's, which it calls.
    beside: Range<u64>,
    /// Whether a thread that waits for a lock in it must come out too: nothing else says that the lock is held.
    locks: bool,
}

impl Calls {
    pub(super) fn of_libc(library: &Library) -> Self {
        Self { code: vec![library.malloc.clone()], beside: library.text.clone(), locks: false }
    }

    /// That of an object whose `malloc` lies there, which may be the program.
    pub(super) fn of_allocator(
        pid: u32,
        object: &Object,
        malloc: u64,
        libc: &Object,
    ) -> Result<Self, Unknown> {
        let none = || Unknown::NoSymbols(object.name.clone());
        let program = File::open(format!("/proc/{pid}/exe")).ok().and_then(Symbols::of);
        let text = object.text()?;
        let code = match program.filter(|_| object.is_program) {
            Some(symbols) => symbols.code(object.bias, malloc).ok_or_else(none)?,
            None if object.is_program || text.end - text.start > MOST => return Err(none()),
            None => vec![text],
        };
        Ok(Self { code, beside: libc.text()?, locks: true })
    }

    fn contains(&self, address: u64) -> bool {
        self.code.iter().any(|range| range.contains(&address))
    }

    /// Whether a thread is in it, or in what it has called. One that waits in the kernel isn't: if it waits for an arena of glibc's,
    /// that is locked.
    pub(super) fn has(&self, view: View<'_>, registers: &Registers) -> bool {
        if self.contains(registers.pc()) {
            return true;
        }
        if !self.beside.contains(&registers.pc()) {
            return false;
        }
        let called = |words: &[u64]| words.iter().any(|&word| self.contains(address(word)));
        if !registers.is_waiting() {
            registers.link().is_some_and(|link| called(&[link]))
                || view.words::<WORDS>(registers.sp()).is_ok_and(|words| called(&words))
        } else {
            self.locks
                && registers.is_waiting_for_a_lock()
                && view.words::<WORDS_OF_LOCKS>(registers.sp()).is_ok_and(|words| called(&words))
        }
    }
}

/// The functions of a program's file.
struct Symbols(Vec<(String, Range<u64>)>);

impl Symbols {
    fn of(file: File) -> Option<Self> {
        let cache = ReadCache::new(file);
        let elf: ElfFile64<'_, Endianness, _> = ElfFile64::parse(&cache).ok()?;
        let functions = elf.symbols().filter(|symbol| {
            symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() != 0
        });
        let all = functions.filter_map(|symbol| {
            let end = symbol.address().checked_add(symbol.size())?;
            Some((symbol.name().ok()?.to_owned(), symbol.address()..end))
        });
        Some(Self(all.collect()))
    }

    /// jemalloc's code: what lies between its functions, which have a prefix; and parts of these that lie elsewhere.
    fn code(&self, bias: u64, malloc: u64) -> Option<Vec<Range<u64>>> {
        let located = |range: &Range<u64>| bias.wrapping_add(range.start)..bias.wrapping_add(range.end);
        let is_cold = |name: &str| name.contains(".cold");
        let is_own = |name: &str| name.starts_with("je_") && !is_cold(name);
        let all = || self.0.iter().map(|(name, range)| (name.as_str(), located(range)));
        all().find(|(name, range)| *name == "malloc" && range.start == malloc)?;
        let mut own: Vec<Range<u64>> =
            all().filter(|(name, _)| is_own(name)).map(|(_, range)| range).collect();
        own.extend(all().filter(|(_, range)| range.start == malloc).map(|(_, range)| range));
        let (start, end) =
            (own.iter().map(|range| range.start).min()?, own.iter().map(|range| range.end).max()?);
        if end - start > MOST || own.len() < 100 {
            return None;
        }
        let inside = all().filter(|(_, range)| (start..end).contains(&range.start));
        let names: HashSet<&str> = inside.map(|(name, _)| name).collect();
        let is_part = |name: &str| name.split_once(".cold").is_some_and(|(whole, _)| names.contains(whole));
        let parts = all().filter(|(name, _)| is_part(name)).map(|(_, range)| range);
        Some(std::iter::once(start..end).chain(parts).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocator_in_a_program_is_what_lies_between_its_functions() {
        let function = |name: &str, start: u64| (name.to_owned(), start..start + 0x10);
        let mut all = vec![
            function("main", 0x100),
            function("arena_new.cold", 0x200),
            function("other.cold", 0x300),
            function("malloc", 0x1_0000),
            function("arena_new", 0x1_0800),
            function("other", 0x9_0000),
        ];
        assert_eq!(Symbols(all.clone()).code(0x40_0000, 0x41_0000), None);
        all.extend((1..=100).map(|at| function("je_function", 0x1_0000 + 0x20 * at)));
        let symbols = Symbols(all);
        assert_eq!(
            symbols.code(0x40_0000, 0x41_0000),
            Some(vec![0x41_0000..0x41_0c90, 0x40_0200..0x40_0210])
        );
        assert_eq!(symbols.code(0x40_0000, 0x41_0020), None);
    }
}
