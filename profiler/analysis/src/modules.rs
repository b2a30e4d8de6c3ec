//! The loaded objects of a trace.

use crate::analyse::Violation;
use crate::hash::AddressMap;
use grapnel_trace::Module;

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
        self.list.get(*self.by_id.get(&u64::from(id))? as usize)
    }

    /// All modules, in the order in which they were loaded.
    pub fn iter(&self) -> impl Iterator<Item = &Module> {
        self.list.iter()
    }
}
