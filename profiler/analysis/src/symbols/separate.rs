//! Which files belong to a module: the module itself, its debug file, what `dwz` and `-gsplit-dwarf` moved elsewhere.
//!
//! Whatever is found somewhere else than at the recorded path must have the right build id, or the checksum that the
//! debug link has. So looking in many places costs time, never truth.

use super::data::StableFile;
use super::debuginfod::Kind;
use super::files::{FileError, FileStore, Opened, hex, path_of};
use super::search::SearchPath;
use grapnel_trace::Module;
use object::read::{Object, ObjectSection};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Finds the files of modules.
pub(crate) struct Finder<'s, 'a> {
    pub(crate) store: &'a FileStore,
    pub(crate) search: &'s SearchPath,
    /// When the module was loaded last, or the recording ended, where that is known.
    pub(crate) recorded: Option<SystemTime>,
}

impl<'a> Finder<'_, 'a> {
    /// The module's own file: at its path, else by its build id or its name in the directories with debug files.
    pub(crate) fn module(&self, module: &Module) -> Result<Opened<'a>, FileError> {
        let path = path_of(&module.path);
        let id = &module.build_id;
        let here = self.search.local(path).map_err(FileError::from);
        let error = match here.and_then(|here| self.store.open(&here, id)) {
            Ok(opened) => {
                // In a copy of the machine's files the dates are those of the copy.
                let newer = self.search.sysroot.is_none() && opened.modified > self.recorded;
                return if id.is_empty() && self.recorded.is_some() && newer {
                    Err(FileError::Newer)
                } else {
                    Ok(opened)
                };
            }
            Err(error) => error,
        };
        let mut found = self.by_id(id, "");
        if !id.is_empty() {
            found.extend(self.search.debug_dirs.iter().flat_map(|dir| {
                [Some(dir.join(relative(path))), path.file_name().map(|name| dir.join(name))]
                    .into_iter()
                    .flatten()
            }));
        }
        found.iter().find_map(|path| self.store.open(path, id).ok()).ok_or(error)
    }

    /// The separate debug file of a module, wherever distributions keep it: by its build id, or by the name in
    /// `.gnu_debuglink`.
    pub(crate) fn debug(&self, build_id: &[u8], main: Option<&Opened<'_>>) -> Option<Opened<'a>> {
        let found = self.by_id(build_id, ".debug");
        if let Some(opened) = found.iter().find_map(|path| self.wanted(path, build_id)) {
            return Some(opened);
        }
        let main = main?;
        let (name, crc) = main.elf.gnu_debuglink().ok()??;
        // Without any directory, so that a link can't lead elsewhere.
        let name = path_of(name).file_name()?;
        let dir = main.path.parent()?;
        let there = relative(self.search.recorded(dir));
        let elsewhere = self.search.debug_dirs.iter().flat_map(|root| [root.join(there), root.clone()]);
        for dir in [dir.to_owned(), dir.join(".debug")].into_iter().chain(elsewhere) {
            let path = dir.join(name);
            if path == main.path {
                continue;
            }
            let Some(opened) = self.wanted(&path, build_id) else { continue };
            if !build_id.is_empty() || checksum_of(&path) == Some(crc) {
                return Some(opened);
            }
            self.unfit(&path, &FileError::OtherChecksum);
        }
        None
    }

    /// What servers have of a build, if they may be asked. A file of another build is thrown away.
    pub(crate) fn fetched(&self, build_id: &[u8], kind: Kind) -> Option<Opened<'a>> {
        let fetched = self.search.debuginfod.as_ref()?.fetch(build_id, kind);
        let path = fetched.map_err(|why| self.store.trouble(why)).ok()??;
        let opened = self.wanted(&path, build_id);
        if opened.is_none() {
            // If it stays, the note will come again.
            let _ = std::fs::remove_file(&path);
        }
        opened
    }

    /// The package of split DWARF units that belongs to an object: beside it, with `.dwp` behind its name. The ids
    /// of its units tell whether they fit.
    pub(crate) fn package(&self, files: &[&Opened<'_>]) -> Option<Opened<'a>> {
        let names = files.iter().flat_map(|file| {
            // A debug file is often called as the object with `.debug` behind it, and the package without.
            let bare =
                file.path.extension().filter(|end| *end == "debug").map(|_| file.path.with_extension("dwp"));
            let mut full = file.path.clone().into_os_string();
            full.push(".dwp");
            [Some(PathBuf::from(full)), bare]
        });
        names.flatten().find_map(|path| self.store.open(&path, &[]).ok())
    }

    /// The file that `dwz` moved common debug information to.
    pub(crate) fn supplement(&self, of: &Opened<'_>) -> Option<Opened<'a>> {
        let (name, build_id) = match of.elf.gnu_debugaltlink() {
            Ok(Some((name, id))) => (name.to_vec(), id.to_vec()),
            _ => supplement_link(of)?,
        };
        let mut found = self.by_id(&build_id, ".debug");
        let name = path_of(&name);
        found.extend(of.path.parent().and_then(|dir| self.search.beside(dir, name).ok()));
        if name.is_absolute() {
            // As `/usr/lib/debug/.dwz/NAME`, wherever that directory is by now.
            let kept = name.strip_prefix("/usr/lib/debug").unwrap_or(name);
            found.extend(self.search.debug_dirs.iter().map(|dir| dir.join(relative(kept))));
        }
        let opened = found.iter().find_map(|path| self.supplement_at(path, &build_id));
        let opened = opened.or_else(|| self.fetched(&build_id, Kind::DebugInfo));
        if opened.is_none() {
            self.store.trouble(format!(
                "some names and inlined calls of {} are in {}, which isn't there or is of another build",
                of.path.display(),
                name.display()
            ));
        }
        opened
    }

    /// DWARF 5 gives the checksum a section of its own, in place of a build id.
    fn supplement_at(&self, path: &Path, id: &[u8]) -> Option<Opened<'a>> {
        self.store.open(path, id).ok().or_else(|| {
            let opened = self.store.open(path, &[]).ok()?;
            let (_, found) = supplement_link(&opened)?;
            (!id.is_empty() && found == id).then_some(opened)
        })
    }

    /// `DIR/.build-id/ab/cdefENDING`, and as debuginfod's clients keep files.
    fn by_id(&self, build_id: &[u8], ending: &str) -> Vec<PathBuf> {
        let Some((first, rest)) = build_id.split_first() else { return Vec::new() };
        let cached = if ending.is_empty() { Kind::Executable } else { Kind::DebugInfo };
        let paths = self.search.debug_dirs.iter().flat_map(|dir| {
            let by_halves = dir.join(".build-id").join(hex(&[*first])).join(hex(rest) + ending);
            [by_halves, dir.join(hex(build_id)).join(cached.name())]
        });
        paths.collect()
    }

    /// Opens a file that may be the one. One that is there and isn't is worth a note.
    fn wanted(&self, path: &Path, build_id: &[u8]) -> Option<Opened<'a>> {
        match self.store.open(path, build_id) {
            Ok(opened) => Some(opened),
            Err(FileError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                self.unfit(path, &error);
                None
            }
        }
    }

    fn unfit(&self, path: &Path, error: &FileError) {
        let why = match error {
            FileError::OtherBuild { found } => format!("it is of another build ({found})"),
            error => error.to_string(),
        };
        self.store.trouble(format!("the debug file {} isn't used: {why}", path.display()));
    }
}

/// A path as it is below another directory.
fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn checksum_of(path: &Path) -> Option<u32> {
    StableFile::open(path).ok()?.crc32().ok()
}

/// The name and checksum in `.debug_sup` (DWARF 5, section 7.3.6).
fn supplement_link(of: &Opened<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
    let section = of.elf.section_by_name(".debug_sup")?;
    let bytes = section.data().ok()?;
    // A version and whether this is the supplementary file itself.
    let rest = bytes.get(3..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    let (name, rest) = rest.split_at(end);
    let mut reader = gimli::EndianSlice::new(rest.get(1..)?, gimli::LittleEndian);
    let len = usize::try_from(gimli::Reader::read_uleb128(&mut reader).ok()?).ok()?;
    Some((name.to_vec(), reader.slice().get(..len)?.to_vec()))
}
