//! Addresses to functions, files, lines and inlined calls.
//!
//! For each module, in this order:
//! 1. DWARF of the module, else of its separate debug file (by build id, then by debug link), with the
//!    common parts that `dwz` moved out and the units that were split off (`.dwp`, `.dwo`);
//! 2. `.symtab`, then `.dynsym`: the function only.
//!
//! Files are looked for on this machine at the paths in the trace. One whose build id is not the recorded
//! one is not used, and a [note](Symbols::notes) says so. A module without a file (the vDSO, a deleted
//! library) still has its name and offsets. Compressed symbol tables in `.gnu_debugdata` are not read yet.

mod demangle;
mod dwarf;
mod files;
mod table;

pub use files::{FileError, FileStore};

use crate::hash::AddressMap;
use crate::modules::Modules;
use crate::stacks::Node;
use dwarf::DebugInfo;
use files::{Opened, path_of};
use grapnel_trace::Module;
use std::collections::HashMap;
use std::path::PathBuf;
use table::SymbolTable;

/// Modules that get a note of their own.
const MAX_NOTES: usize = 8;

/// A function's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    text: String,
    /// It came from a mangled name, which has all scopes in it.
    full: bool,
}

/// A frame at an address: the function itself, or one that the compiler inlined into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    function: Option<Name>,
    file: Option<String>,
    line: Option<u32>,
    inlined: bool,
}

impl Frame {
    const UNKNOWN: Self = Self { function: None, file: None, line: None, inlined: false };

    /// The function's name, demangled.
    pub fn function(&self) -> Option<&str> {
        Some(&self.function.as_ref()?.text)
    }

    /// The source file's path, as the compiler recorded it.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The line: of the call, in all frames but that of a signal.
    pub fn line(&self) -> Option<u32> {
        self.line
    }

    /// Whether the compiler inlined this function into the one of the frame after it.
    pub fn inlined(&self) -> bool {
        self.inlined
    }
}

/// Where to look for files.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SearchPath {
    /// Directories with separate debug files.
    pub debug_dirs: Vec<PathBuf>,
}

impl Default for SearchPath {
    /// What Debian, Fedora and their relatives use: `/usr/lib/debug`.
    fn default() -> Self {
        Self { debug_dirs: vec!["/usr/lib/debug".into()] }
    }
}

/// Looks up addresses. Each file is opened once, each address looked up once.
pub struct Symbols<'a> {
    store: &'a FileStore,
    search: SearchPath,
    objects: Vec<LoadedObject<'a>>,
    /// By build id and path: a library that was loaded often is read once.
    object_of: HashMap<(Vec<u8>, Vec<u8>), Option<usize>>,
    object_of_module: AddressMap<Option<usize>>,
    /// Per object, the ranges of `frames` that addresses have.
    known: HashMap<(usize, u64), (u32, u32)>,
    frames: Vec<Frame>,
    notes: Vec<String>,
}

impl core::fmt::Debug for Symbols<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Symbols({} objects, {} frames)", self.objects.len(), self.frames.len())
    }
}

struct LoadedObject<'a> {
    debug_info: Option<DebugInfo<'a>>,
    table: SymbolTable,
    /// Those that `table` was made from.
    files: Vec<Opened<'a>>,
    path: String,
    unresolved: bool,
}

impl<'a> Symbols<'a> {
    /// Nothing is opened before it is asked for.
    pub fn new(store: &'a FileStore, search: SearchPath) -> Self {
        Self {
            store,
            search,
            objects: Vec::new(),
            object_of: HashMap::new(),
            object_of_module: AddressMap::default(),
            known: HashMap::new(),
            frames: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The frames at a node's address, the innermost inlined one first, the physical one last. At least
    /// one, if perhaps with nothing known about it.
    pub fn frames(&mut self, modules: &Modules, node: &Node) -> &[Frame] {
        let Some(module) = modules.get(node.module) else { return &[Frame::UNKNOWN] };
        let Some(object) = self.object(module) else { return &[Frame::UNKNOWN] };
        let address = node.lookup_pc().wrapping_sub(module.bias);
        let (start, end) = match self.known.get(&(object, address)) {
            Some(&range) => range,
            None => {
                let start = self.frames.len() as u32;
                let frames = self.objects[object].look_up(address);
                self.frames.extend(frames);
                let range = (start, self.frames.len() as u32);
                self.known.insert((object, address), range);
                range
            }
        };
        &self.frames[start as usize..end as usize]
    }

    /// What kept frames from being resolved, a sentence each, in reasonable number.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.notes.iter().take(MAX_NOTES).cloned().collect();
        if self.notes.len() > MAX_NOTES {
            notes.push(format!("no symbols from {} other modules either", self.notes.len() - MAX_NOTES));
        }
        notes
    }

    /// Paths of the modules in which a frame was looked up and has no source line, for want of debug
    /// information.
    pub fn without_lines(&self) -> impl Iterator<Item = &str> {
        let lacking = self.objects.iter().filter(|object| object.unresolved && object.debug_info.is_none());
        lacking.map(|object| object.path.as_str())
    }

    fn object(&mut self, module: &Module) -> Option<usize> {
        if let Some(&object) = self.object_of_module.get(&u64::from(module.id)) {
            return object;
        }
        let key = (module.build_id.clone(), module.path.clone());
        let object = match self.object_of.get(&key) {
            Some(&object) => object,
            None => {
                let object = self.load(module).map(|object| {
                    self.objects.push(object);
                    self.objects.len() - 1
                });
                self.object_of.insert(key, object);
                object
            }
        };
        self.object_of_module.insert(u64::from(module.id), object);
        object
    }

    fn load(&mut self, module: &Module) -> Option<LoadedObject<'a>> {
        // The vDSO and its like are no files.
        if !module.path.starts_with(b"/") {
            return None;
        }
        let path = String::from_utf8_lossy(&module.path).into_owned();
        let main = match self.store.open(path_of(&module.path), &module.build_id) {
            Ok(main) => Some(main),
            Err(error) => {
                self.notes.push(format!("no symbols from {path}: {error}"));
                None
            }
        };
        let has_own = main.as_ref().is_some_and(|main| dwarf::has_debug_info(&main.elf));
        let debug = if has_own {
            None
        } else {
            self.store.open_debug(&self.search.debug_dirs, &module.build_id, main.as_ref())
        };
        let files: Vec<Opened<'a>> = debug.into_iter().chain(main).collect();
        let first = files.first()?;
        let debug_info = dwarf::has_debug_info(&first.elf).then(|| {
            let sup = self.store.open_sup(&self.search.debug_dirs, first);
            let package = self.store.open_package(first);
            let [sup, package] = [&sup, &package].map(|opened| opened.as_ref().map(|opened| &opened.elf));
            DebugInfo::load(self.store, &first.elf, sup, package)
        });
        let debug_info = match debug_info.transpose() {
            Ok(debug_info) => debug_info,
            Err(error) => {
                self.notes.push(format!("no lines from {}: {error}", first.path.display()));
                None
            }
        };
        let table = SymbolTable::new(&elfs(&files));
        Some(LoadedObject { debug_info, table, files, path, unresolved: false })
    }
}

fn elfs<'f, 'a>(files: &'f [Opened<'a>]) -> Vec<&'f files::ElfFile<'a>> {
    files.iter().map(|file| &file.elf).collect()
}

impl LoadedObject<'_> {
    fn look_up(&mut self, address: u64) -> Vec<Frame> {
        let mut frames = self.debug_info.as_ref().map(|info| info.frames(address)).unwrap_or_default();
        if frames.is_empty() {
            frames.push(Frame::UNKNOWN);
        }
        self.unresolved |= frames.iter().all(|frame| frame.line.is_none());
        // GCC leaves the mangled name out of DWARF for functions in anonymous namespaces.
        if let Some(physical) = frames.last_mut()
            && physical.function.as_ref().is_none_or(|name| !name.full)
            && !self.table.is_empty()
            && let Some(symbol) = self.table.name(&elfs(&self.files), address)
            && (physical.function.is_none() || demangle::is_mangled(&symbol))
        {
            physical.function = Some(Name { text: demangle::demangle(&symbol), full: true });
        }
        frames
    }
}
