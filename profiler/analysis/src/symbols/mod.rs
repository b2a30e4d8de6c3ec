//! Addresses to functions, files, lines and inlined calls.
//!
//! For each module, in this order:
//! 1. DWARF of the module, else of its separate debug file (by build id, then by debug link), with the
//!    common parts that `dwz` moved out and the units that were split off (`.dwp`, `.dwo`);
//! 2. `.symtab`, else the table in `.gnu_debugdata`; then `.dynsym`: the function only.
//!
//! What the trace itself says of an address goes before all of these.
//!
//! Files are looked for at the paths in the trace: on this machine, or below a directory with the files of the
//! recorded one ([`SearchPath`]), which may be of another architecture. One whose build id is not the recorded one is not
//! used, and a [note](Symbols::notes) says so; nor is one without a build id that was written since it was loaded. A module without a
//! file (the vDSO, a deleted library) still has its name and offsets.
//!
//! What isn't found may be asked of servers ([`Debuginfod`]), if the caller names some.
//!
//! All these files are input that is not trusted: what is read and kept is bounded, and what is broken is a note.

mod data;
mod debuginfod;
mod demangle;
mod discarded;
mod dwarf;
mod embed;
mod files;
mod packs;
mod search;
mod sections;
mod separate;
mod split;
mod table;
mod units;
mod variables;

pub use debuginfod::{Debuginfod, DebuginfodError, Limits, system_roots};
pub use embed::{Embedded, embed};
pub use files::{FileError, FileStore};
pub use search::SearchPath;

use crate::hash::AddressMap;
use crate::modules::Modules;
use crate::stacks::Node;
use debuginfod::Kind;
use dwarf::DebugInfo;
use files::Opened;
use grapnel_trace::Module;
use grapnel_trace::names::{NamedFrame, Names};
use object::read::Object;
use separate::Finder;
use split::SplitUnits;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::SystemTime;
use table::SymbolTable;
use variables::Variables;

/// Troubles that get a note of their own.
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
    /// The frames at an address, as the trace has them.
    pub(crate) fn of_names(names: &Names) -> Box<[Self]> {
        let text = |bytes: &[u8]| (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).into_owned());
        let last = names.frames.len().saturating_sub(1);
        let frame = |(at, frame): (usize, &NamedFrame)| Self {
            function: text(&frame.function).map(|text| Name { text, full: true }),
            file: text(&frame.file),
            line: (frame.line > 0).then_some(frame.line),
            inlined: at < last,
        };
        names.frames.iter().enumerate().map(frame).collect()
    }

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

/// A module's build id and path.
type FileKey = (Vec<u8>, Vec<u8>);

/// Sentences that are said once a file is asked for.
struct Unsaid {
    notes: Vec<String>,
    /// The store's.
    troubles: Vec<String>,
}

/// Looks up addresses. Each file is opened once, each address looked up once.
pub struct Symbols<'a> {
    store: &'a FileStore,
    search: SearchPath,
    objects: Vec<LoadedObject<'a>>,
    /// Those that were asked for, in the order in which they were.
    asked: Vec<usize>,
    /// By build id and path: a library that was loaded often is read once.
    object_of: HashMap<FileKey, Option<usize>>,
    object_of_module: AddressMap<Option<usize>>,
    /// Per object, the ranges of `frames` that addresses have.
    known: HashMap<(usize, u64), (u32, u32)>,
    frames: Vec<Frame>,
    notes: Vec<String>,
    /// What stands for the stacks of blocks that are older than the recording.
    before: [Frame; 1],
    /// What there is to say of files that were opened and not asked for yet.
    unsaid: HashMap<FileKey, Unsaid>,
}

impl core::fmt::Debug for Symbols<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Symbols({} objects, {} frames)", self.objects.len(), self.frames.len())
    }
}

struct LoadedObject<'a> {
    debug_info: Option<DebugInfo<'a>>,
    table: SymbolTable,
    /// Read when one is asked for.
    variables: Option<Variables>,
    /// Those that `table` was made from.
    files: Vec<Opened<'a>>,
    path: String,
    code: CodeAddresses,
    unresolved: bool,
    asked: bool,
}

/// What is shown in place of a stack that nobody saw.
pub const BEFORE: &str = "[allocated before grapnel attached]";

impl<'a> Symbols<'a> {
    /// Nothing is opened before it is asked for.
    pub fn new(store: &'a FileStore, search: SearchPath) -> Self {
        Self {
            store,
            search,
            objects: Vec::new(),
            asked: Vec::new(),
            object_of: HashMap::new(),
            object_of_module: AddressMap::default(),
            known: HashMap::new(),
            frames: Vec::new(),
            notes: Vec::new(),
            before: [Frame { function: Some(Name { text: BEFORE.into(), full: true }), ..Frame::UNKNOWN }],
            unsaid: HashMap::new(),
        }
    }

    /// From here on nodes are another trace's, whose modules have numbers of their own. What was found in files is kept.
    pub fn begin_trace(&mut self) {
        self.object_of_module.clear();
    }

    /// Opens the files of a module that is likely to be asked for. What there is to say of them is said once it is, and
    /// servers are asked for nothing before.
    pub(crate) fn prepare(&mut self, module: &Module) {
        let key = (module.build_id.clone(), module.path.clone());
        // Without a build id it depends on when the recording ended whether a file is the right one.
        if module.build_id.is_empty() || self.search.debuginfod.is_some() || self.object_of.contains_key(&key)
        {
            return;
        }
        let (notes, troubles) = (self.notes.len(), self.store.trouble_count());
        let object = self.load(module, None).map(|object| self.add(object));
        let unsaid =
            Unsaid { notes: self.notes.split_off(notes), troubles: self.store.troubles_since(troubles) };
        self.unsaid.insert(key.clone(), unsaid);
        self.object_of.insert(key, object);
    }

    fn add(&mut self, object: LoadedObject<'a>) -> usize {
        self.objects.push(object);
        self.objects.len() - 1
    }

    /// The frames at a node's address, the innermost inlined one first, the physical one last. At least
    /// one, if perhaps with nothing known about it.
    pub fn frames<'m>(&'m mut self, modules: &'m Modules, node: &Node) -> &'m [Frame] {
        if node.is_before() {
            return &self.before;
        }
        let module = modules.get(node.module);
        let bias = module.map_or(0, |module| module.bias);
        if let Some(names) = modules.names(node.module, node.lookup_pc().wrapping_sub(bias)) {
            return names;
        }
        let Some(module) = module else { return &[Frame::UNKNOWN] };
        let Some(object) = self.object(module, modules.written_until(module)) else {
            return &[Frame::UNKNOWN];
        };
        let address = self.objects[object].code.place(node, module);
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

    /// The variable of a module that an address lies in: where it lies in the process, and its name, demangled.
    pub fn variable(&mut self, module: &Module, address: u64) -> Option<(Range<u64>, String)> {
        let object = self.object(module, None)?;
        let LoadedObject { variables, files, .. } = &mut self.objects[object];
        let variables = variables.get_or_insert_with(|| Variables::new(&elfs(files)));
        let (range, name) = variables.at(address.wrapping_sub(module.bias))?;
        let range = range.start.wrapping_add(module.bias)..range.end.wrapping_add(module.bias);
        Some((range, demangle::demangle(name)))
    }

    /// The functions that symbol tables of these modules have, by their names, demangled, each file once, until `goes_on` says
    /// no.
    pub(crate) fn each_function(&mut self, modules: &Modules, mut goes_on: impl FnMut(&str) -> bool) {
        let mut seen = HashSet::new();
        for module in modules.iter() {
            let Some(object) = self.object(module, modules.written_until(module)) else { continue };
            let LoadedObject { table, files, .. } = &self.objects[object];
            if seen.insert(object)
                && !table.each_name(&elfs(files), |name| goes_on(&demangle::demangle(&name)))
            {
                return;
            }
        }
    }

    /// What kept frames from being resolved, a sentence each, in reasonable number.
    pub fn notes(&self) -> Vec<String> {
        let troubles = self.store.troubles();
        let mut notes: Vec<String> = self.notes.iter().chain(&troubles).take(MAX_NOTES).cloned().collect();
        let more = (self.notes.len() + troubles.len()).saturating_sub(MAX_NOTES);
        if more > 0 {
            notes.push(format!("{more} more troubles with files of symbols aren't listed"));
        }
        notes
    }

    /// Paths of the modules in which a frame was looked up and has no source line, for want of debug
    /// information.
    pub fn without_lines(&self) -> impl Iterator<Item = &str> {
        let asked = self.asked.iter().map(|&object| &self.objects[object]);
        asked
            .filter(|object| object.unresolved && object.debug_info.is_none())
            .map(|object| object.path.as_str())
    }

    fn object(&mut self, module: &Module, recorded: Option<SystemTime>) -> Option<usize> {
        if let Some(&object) = self.object_of_module.get(&u64::from(module.id)) {
            return object;
        }
        let key = (module.build_id.clone(), module.path.clone());
        let object = match self.object_of.get(&key) {
            Some(&object) => object,
            None => {
                let object = self.load(module, recorded).map(|object| self.add(object));
                self.object_of.insert(key.clone(), object);
                object
            }
        };
        if let Some(object) = object.filter(|&object| !self.objects[object].asked) {
            self.objects[object].asked = true;
            self.asked.push(object);
        }
        if let Some(Unsaid { notes, troubles }) = self.unsaid.remove(&key) {
            self.notes.extend(notes);
            troubles.into_iter().for_each(|trouble| self.store.trouble(trouble));
        }
        self.object_of_module.insert(u64::from(module.id), object);
        object
    }

    fn load(&mut self, module: &Module, recorded: Option<SystemTime>) -> Option<LoadedObject<'a>> {
        // The vDSO and its like are no files.
        if !module.path.starts_with(b"/") {
            return None;
        }
        let path = String::from_utf8_lossy(&module.path).into_owned();
        let finder = Finder { store: self.store, search: &self.search, recorded };
        let (main, error) = match finder.module(module) {
            Ok(main) => (Some(main), None),
            Err(error) => (None, Some(error)),
        };
        let has_own = main.as_ref().is_some_and(|main| dwarf::has_debug_info(&main.elf));
        // A recorder that found no build id may have missed it.
        let own_id = main.as_ref().and_then(|main| main.elf.build_id().ok()?);
        let build_id = if module.build_id.is_empty() { own_id.unwrap_or_default() } else { &module.build_id };
        let debug =
            || finder.debug(build_id, main.as_ref()).or_else(|| finder.fetched(build_id, Kind::DebugInfo));
        let debug = if has_own { None } else { debug() };
        let main =
            if debug.is_some() { main } else { main.or_else(|| finder.fetched(build_id, Kind::Executable)) };
        match (&error, &debug) {
            (Some(error), None) if main.is_none() => {
                self.notes.push(format!("no symbols from {path}: {error}"))
            }
            (Some(error @ FileError::OtherBuild { .. }), Some(debug)) => {
                let from = debug.path.display();
                self.notes.push(format!("{path}: {error}; its symbols are those of {from}"));
            }
            _ => {}
        }
        let mut files: Vec<Opened<'a>> = debug.into_iter().chain(main).collect();
        if files.iter().all(|file| file.elf.symbol_table().is_none()) {
            let own = files.last().and_then(|file| sections::mini_debug_info(self.store, file));
            files.extend(own);
        }
        let first = files.first()?;
        let debug_info = dwarf::has_debug_info(&first.elf).then(|| {
            let supplement = finder.supplement(first);
            let package = finder.package(&files.iter().collect::<Vec<_>>());
            let split = SplitUnits::new(self.store, &self.search, first, package.as_ref());
            DebugInfo::load(self.store, first, supplement.as_ref(), split)
        });
        let debug_info = match debug_info.transpose() {
            Ok(debug_info) => debug_info,
            Err(error) => {
                self.notes.push(format!("no lines from {}: {error}", first.path.display()));
                None
            }
        };
        let table = SymbolTable::new(&elfs(&files));
        let code = CodeAddresses::of(&first.elf);
        Some(LoadedObject {
            debug_info,
            table,
            variables: None,
            files,
            code,
            path,
            unresolved: false,
            asked: false,
        })
    }
}

/// How return addresses of an architecture become places in its files.
#[derive(Clone, Copy, Debug)]
struct CodeAddresses {
    /// Bits that are addresses.
    mask: u64,
    /// The lowest bit tells A32 code from T32 code.
    has_mode_bit: bool,
}

impl CodeAddresses {
    fn of(elf: &files::ElfFile<'_>) -> Self {
        Self {
            mask: if elf.is_64() { u64::MAX } else { u64::from(u32::MAX) },
            has_mode_bit: elf.architecture() == object::Architecture::Arm,
        }
    }

    /// Where in the module's file to look up a node.
    fn place(self, node: &Node, module: &Module) -> u64 {
        let mut node = *node;
        if self.has_mode_bit {
            node.pc &= !1;
        }
        node.lookup_pc().wrapping_sub(module.bias) & self.mask
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
