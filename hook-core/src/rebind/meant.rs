//! Which function a rebinding is for, and whether a word holds it.

use alloc::vec::Vec;

use super::relocations::Place;
use crate::{module::Module, symbol};

/// The function that is meant.
#[derive(Debug)]
pub(super) struct Meant {
    /// What relocations call it by.
    names: Vec<Vec<u8>>,
    /// Where it is. By name: in each object that defines it, in the order of the objects.
    pub(super) definitions: Vec<usize>,
    reach: Reach,
}

#[derive(Debug)]
enum Reach {
    /// Whatever has the name.
    Name,
    /// The one definition. Whether others define one of its names, too.
    Definition { disputed: bool },
}

/// What is to be done with a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Change,
    Leave,
    /// Something else is there, which the dynamic linker didn't put there.
    Foreign,
    /// It isn't bound yet, and several functions have the name.
    Undecided,
}

impl Meant {
    pub(super) fn by_name(name: &[u8]) -> Self {
        Self { names: Vec::from([name.into()]), definitions: Vec::new(), reach: Reach::Name }
    }

    /// The function at an address, with all names that its object exports it by.
    ///
    /// # Safety
    /// The object is loaded and relocated; resolvers run code of it.
    pub(super) unsafe fn by_address(home: &Module, function: usize) -> Self {
        let mut names = Vec::<Vec<u8>>::new();
        symbol::for_each(home, &mut |name, symbol| {
            // SAFETY: the caller's promise.
            if symbol.is_function() && unsafe { symbol.resolve() } as usize == function {
                names.push(name.into());
            }
        });
        names.sort_unstable();
        names.dedup();
        Self { names, definitions: Vec::from([function]), reach: Reach::Definition { disputed: false } }
    }

    /// The name, where one was given.
    pub(super) fn into_name(mut self) -> Vec<u8> {
        self.names.pop().unwrap_or_default()
    }

    /// Takes in what these objects define.
    ///
    /// # Safety
    /// The objects are loaded and relocated; resolvers run code of them.
    pub(super) unsafe fn learn<'a>(&mut self, modules: impl Iterator<Item = &'a Module>) {
        for module in modules {
            for name in &self.names {
                symbol::for_each_version(module, name, &mut |symbol| {
                    // SAFETY: the caller's promise.
                    let address = unsafe { symbol.resolve() } as usize;
                    if self.definitions.contains(&address) {
                        return;
                    }
                    match &mut self.reach {
                        Reach::Name => self.definitions.push(address),
                        Reach::Definition { disputed } => *disputed = true,
                    }
                });
            }
        }
    }

    /// What is to be done with a word of an object, which holds this now.
    pub(super) fn judge(&self, module: &Module, place: &Place, found: usize) -> Verdict {
        let ours = self.definitions.contains(&found);
        let name = place.symbol.and_then(|index| symbol::name_at(module, index));
        let named = name.is_some_and(|name| self.names.iter().any(|other| other == name));
        match self.reach {
            _ if ours && (named || place.symbol.is_none()) => Verdict::Change,
            // Named otherwise, by a name that its object doesn't export.
            Reach::Definition { .. } if ours => Verdict::Change,
            _ if !named => Verdict::Leave,
            // A weak reference that found nothing, which the program may test.
            _ if found == 0 => Verdict::Leave,
            Reach::Name | Reach::Definition { disputed: false } => match module.holds_code(found) {
                // The way to the dynamic linker's resolver, in the object's own code.
                true => Verdict::Change,
                false => Verdict::Foreign,
            },
            Reach::Definition { disputed: true } => {
                let mut bound = !module.holds_code(found);
                symbol::for_each_version(module, name.unwrap_or(&[]), &mut |own| bound |= own.addr == found);
                if bound { Verdict::Leave } else { Verdict::Undecided }
            }
        }
    }
}
