//! The loaded objects of a trace.

use crate::analyse::Violation;
use crate::hash::{AddressMap, FoldHash};
use crate::symbols::Frame;
use grapnel_trace::Module;
use grapnel_trace::names::Names;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

/// More loads than a recording can have.
const MAX_MODULES: usize = 1 << 20;
/// Linux's `PATH_MAX`.
const MAX_PATH: usize = 4096;
const MAX_BUILD_ID: usize = 256;
/// Of all paths and build ids together.
const MAX_TEXT: usize = 64 << 20;
/// Of all names of addresses together, with what keeps them.
const MAX_NAMES: usize = 512 << 20;

/// How much later than it was loaded a file may seem to be written: the times of files and of traces are coarse.
const COARSE: Duration = Duration::from_millis(100);

/// All modules of a trace, by id. Ids are unique per load, so a node's module is the right one however
/// often its addresses were used for something else since.
#[derive(Clone, Debug, Default)]
pub struct Modules {
    list: Vec<Module>,
    by_id: AddressMap<u32>,
    text: usize,
    /// When the recording began and ended, where that is known.
    pub(crate) recorded: Option<(SystemTime, SystemTime)>,
    /// When files were loaded last that have no build id, in nanoseconds since the recording began, by path.
    loaded: HashMap<Vec<u8>, u64>,
    /// The time of the events so far.
    time_ns: u64,
    /// What the trace itself says of addresses, by module and address in it.
    names: HashMap<(u32, u64), Box<[Frame]>, FoldHash>,
    named: usize,
}

impl Modules {
    pub(crate) fn push(&mut self, module: Module) -> Result<(), Violation> {
        if self.list.len() >= MAX_MODULES {
            return Err(Violation::TooMany { what: "modules", limit: MAX_MODULES as u64 });
        }
        if module.path.len() > MAX_PATH || module.build_id.len() > MAX_BUILD_ID {
            return Err(Violation::ModuleText { id: module.id });
        }
        self.text += module.path.len() + module.build_id.len();
        if self.text > MAX_TEXT {
            return Err(Violation::TooMany { what: "bytes of modules' names", limit: MAX_TEXT as u64 });
        }
        if module.build_id.is_empty() {
            self.loaded.insert(module.path.clone(), self.time_ns);
        }
        self.by_id.insert(u64::from(module.id), self.list.len() as u32);
        self.list.push(module);
        Ok(())
    }

    /// What comes next happened at this time, in nanoseconds since the recording began.
    pub(crate) fn set_time(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
    }

    /// A module's file that was written later than this isn't what was loaded: it was replaced since. Without a build id
    /// nothing else tells that.
    pub(crate) fn written_until(&self, module: &Module) -> Option<SystemTime> {
        let (from, until) = self.recorded?;
        let loaded = self.loaded.get(&module.path).map(|&ns| Duration::from_nanos(ns) + COARSE);
        let loaded = loaded.and_then(|loaded| from.checked_add(loaded));
        Some(loaded.map_or(until, |loaded| loaded.min(until)))
    }

    /// Notes what an address is called.
    pub(crate) fn name(&mut self, names: &Names) -> Result<(), Violation> {
        self.named += cost(names);
        if self.named > MAX_NAMES {
            return Err(Violation::TooMany { what: "bytes of addresses' names", limit: MAX_NAMES as u64 });
        }
        if !names.frames.is_empty() {
            self.names.insert((names.module, names.address), Frame::of_names(names));
        }
        Ok(())
    }

    /// How much more the trace may say of addresses, by [`cost`].
    pub(crate) fn room_for_names(&self) -> usize {
        MAX_NAMES.saturating_sub(self.named)
    }

    /// Changes whenever something is added.
    pub(crate) fn version(&self) -> usize {
        self.list.len() + self.named
    }

    /// What the trace itself says of an address in a module.
    pub(crate) fn names(&self, module: u32, address: u64) -> Option<&[Frame]> {
        if self.names.is_empty() {
            return None;
        }
        self.names.get(&(module, address)).map(|frames| &**frames)
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

/// What it takes to keep these names.
pub(crate) fn cost(names: &Names) -> usize {
    let text = names.frames.iter().map(|frame| frame.function.len() + frame.file.len() + size_of::<Frame>());
    64 + text.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_after_it_was_loaded_is_another_file() {
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut modules = Modules::default();
        let module = |id, path: &[u8], build_id: &[u8]| Module {
            id,
            path: path.to_vec(),
            build_id: build_id.to_vec(),
            ..Module::default()
        };
        modules.push(module(1, b"/program", b"")).unwrap();
        modules.push(module(2, b"/library", b"id")).unwrap();
        modules.push(module(3, b"/again", b"")).unwrap();
        modules.set_time(2_000_000_000);
        modules.push(module(4, b"/again", b"")).unwrap();
        let until = |modules: &Modules, id| modules.written_until(modules.get(id).unwrap());
        assert_eq!(until(&modules, 1), None, "nobody knows when it was");
        modules.recorded = Some((begin, at(5)));
        let all = [1, 2, 3, 4].map(|id| until(&modules, id).unwrap());
        assert_eq!(all, [begin + COARSE, at(5), at(2) + COARSE, at(2) + COARSE]);
        modules.recorded = Some((begin, begin));
        assert_eq!(until(&modules, 4), Some(begin), "not later than the recording");
    }

    #[test]
    fn names_are_bounded_one_by_one_and_together() {
        let mut modules = Modules::default();
        let named = |id, len| Module { id, path: vec![b'x'; len], ..Module::default() };
        assert_eq!(modules.push(named(1, 5000)), Err(Violation::ModuleText { id: 1 }));
        let full = (1..).find(|&id| modules.push(named(id, MAX_PATH)).is_err());
        assert_eq!(full, Some((MAX_TEXT / MAX_PATH) as u32 + 1));
        assert!(modules.get(1).is_some() && modules.get(0).is_none());
    }
}
