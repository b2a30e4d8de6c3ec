//! Which function a rebinding is for, and whether a word holds it.

use alloc::vec::Vec;

use super::relocations::{self, Place};
use crate::{module::Module, symbol};

/// The function that is meant.
#[derive(Debug)]
pub(super) struct Meant {
    /// What relocations call it by.
    names: Vec<Vec<u8>>,
    /// Where it is. By name: in each object that defines it, in the order of the objects.
    pub(super) definitions: Vec<usize>,
    reach: Reach,
    stand_ins: Vec<StandIn>,
}

/// An entry of an object's procedure linkage table that all pointers to a function lead to, as the object takes the function's
/// address and was linked for an address of its own. It leads on by a word of that object.
#[derive(Debug)]
struct StandIn {
    home: Module,
    at: usize,
    word: Place,
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
        let names = Vec::from([name.into()]);
        Self { names, definitions: Vec::new(), reach: Reach::Name, stand_ins: Vec::new() }
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
        let reach = Reach::Definition { disputed: false };
        Self { names, definitions: Vec::from([function]), reach, stand_ins: Vec::new() }
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
                symbol::for_each_stand_in(module, name, &mut |index, at| {
                    let word = relocations::of_symbol(module, index);
                    let known = self.stand_ins.iter().any(|known| known.at == at);
                    if let (false, Some(word)) = (known, word) {
                        self.stand_ins.push(StandIn { home: module.clone(), at, word });
                    }
                });
            }
        }
    }

    /// What is to be done with a word of one of these objects, which holds this now.
    pub(super) fn judge_among<'a>(
        &self,
        mut modules: impl Iterator<Item = &'a Module>,
        module: &Module,
        place: &Place,
        found: usize,
        replacement: usize,
    ) -> Verdict {
        let Some(stand_in) = self.stand_ins.iter().find(|stand_in| stand_in.at == found) else {
            return self.judge(module, place, found);
        };
        // It leads to where the stand-in's own word does. Left as it is, it stays equal to the pointers in that object's code.
        match stand_in.home.read::<usize>(stand_in.word.at) {
            Some(now) if now == replacement => Verdict::Leave,
            Some(_) if modules.any(|module| module.holds_code(found)) => Verdict::Leave,
            Some(now) => self.judge(&stand_in.home, &stand_in.word, now),
            None => Verdict::Leave,
        }
    }

    /// The same for one that holds no stand-in.
    fn judge(&self, module: &Module, place: &Place, found: usize) -> Verdict {
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
