//! The loaded objects of a trace.

use crate::analyse::Violation;
use crate::hash::AddressMap;
use grapnel_trace::Module;
use std::collections::HashMap;

/// More loads than a recording can have.
const MAX_MODULES: usize = 1 << 20;
/// Linux's `PATH_MAX`.
const MAX_PATH: usize = 4096;
const MAX_BUILD_ID: usize = 256;

/// All modules of a trace, by id. Ids are unique per load, so a node's module is the right one however
/// often its addresses were used for something else since.
#[derive(Clone, Debug, Default)]
pub struct Modules {
    list: Vec<Module>,
    by_id: AddressMap<u32>,
}

impl Modules {
    pub(crate) fn push(&mut self, module: Module) -> Result<(), Violation> {
        if self.list.len() >= MAX_MODULES {
            return Err(Violation::TooMany { what: "modules", limit: MAX_MODULES as u64 });
        }
        if module.path.len() > MAX_PATH || module.build_id.len() > MAX_BUILD_ID {
            return Err(Violation::ModuleText { id: module.id });
        }
        self.by_id.insert(u64::from(module.id), self.list.len() as u32);
        self.list.push(module);
        Ok(())
    }

    /// The module with this id. For 0 and for ids that the trace never described there is none.
    pub fn get(&self, id: u32) -> Option<&Module> {
        self.index(id).map(|index| self.at(index))
    }

    /// The place of a module in [`Modules::iter`].
    pub(crate) fn index(&self, id: u32) -> Option<usize> {
        self.by_id.get(&u64::from(id)).map(|&index| index as usize)
    }

    pub(crate) fn at(&self, index: usize) -> &Module {
        &self.list[index]
    }

    /// For each module, the place of the first one with the same path and build id.
    pub(crate) fn files(&self) -> Vec<u32> {
        let mut first: HashMap<(&[u8], &[u8]), u32> = HashMap::new();
        let mut files = Vec::with_capacity(self.list.len());
        for (index, module) in (0..).zip(&self.list) {
            files.push(*first.entry((&module.path, &module.build_id)).or_insert(index));
        }
        files
    }

    /// All modules, in the order in which they were loaded.
    pub fn iter(&self) -> impl Iterator<Item = &Module> {
        self.list.iter()
    }
}
