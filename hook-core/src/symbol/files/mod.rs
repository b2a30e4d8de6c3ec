//! Symbols of loaded objects that are in files: what an object doesn't export, such as static functions.
//!
//! They are looked for in this order:
//! 1. `.symtab` of the object's own file;
//! 2. the separate debug file by the object's build id (`/usr/lib/debug/.build-id`), then by the name in
//!    `.gnu_debuglink`;
//! 3. `.gnu_debugdata` of the object's file, the compressed table of functions that some distributions leave there.
//!
//! A file counts only if it belongs to what is mapped. The build id tells; an object that was linked without one is
//! compared with its file by the headers, the names of the dynamic symbols and the unwind index, and its debug file by the
//! checksum in the debug link. A file that was replaced since the object was loaded is an error.
//!
//! Files are input that is not trusted: whatever is in them, what is read and allocated is bounded, and answers are
//! errors. The files of other processes or users can be cut short or changed meanwhile; reads then fail.

mod compressed;
mod contents;
mod error;
mod separate;
mod table;

use alloc::{ffi::CString, vec::Vec};
use core::{ffi::CStr, ops::Range};

use object::{
    NativeEndian, ReadRef,
    elf::{PT_GNU_EH_FRAME, PT_LOAD, PT_NOTE, SHT_NOTE},
    read::elf::{FileHeader, ProgramHeader as _, SectionHeader as _, SectionTable},
};

use crate::{
    Errno,
    module::{BuildId, Module},
    sys,
};
use contents::{Contents, NAME_MAX};
pub use error::FileError;
pub use table::FileSymbol;
use table::{Place, Table};

#[cfg(target_pointer_width = "32")]
type Elf = object::elf::FileHeader32<NativeEndian>;
#[cfg(target_pointer_width = "64")]
type Elf = object::elf::FileHeader64<NativeEndian>;

/// A field of a header, which has 32 or 64 bits.
fn wide(field: impl Into<u64>) -> u64 {
    field.into()
}

/// More sections or segments than any object has that can be loaded.
const HEADERS_MAX: u32 = 1 << 16;
/// Longer notes aren't looked at: those of probes may take some hundred KiB.
const NOTES_MAX: usize = 1 << 22;

/// Where distributions keep debug files.
const DEBUG_ROOT: &[u8] = b"/usr/lib/debug";
/// The main program, whatever its path leads to by now: as the main thread has it, which has none any more once it has ended,
/// and as this thread does. Emulators put theirs into the first only.
const PROGRAM: [&CStr; 2] = [c"/proc/self/exe", c"/proc/thread-self/exe"];

/// The name that the main program can be opened by.
fn program() -> &'static [u8] {
    let [first, other] = PROGRAM;
    if sys::Fd::open(first, libc::O_RDONLY).is_ok() { first.to_bytes() } else { other.to_bytes() }
}

/// Which kind of file symbols came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The object's own file.
    Own,
    /// A separate debug file.
    Separate,
    /// `.gnu_debugdata` of the object's own file: functions that aren't exported only.
    Compressed,
}

/// The symbols of a loaded object that its files have.
#[derive(Debug)]
pub struct FileSymbols {
    path: Vec<u8>,
    source: Source,
    table: Table,
}

/// An object file whose headers were read.
struct Opened<'a> {
    path: &'a [u8],
    contents: &'a Contents,
    header: &'a Elf,
    sections: SectionTable<'a, Elf, &'a Contents>,
}

impl FileSymbols {
    /// Finds the symbols of a loaded object.
    ///
    /// # Errors
    /// If there are none, why those of the object's own file can't be used.
    pub fn open(module: &Module) -> Result<Self, FileError> {
        Self::open_in(module, &[DEBUG_ROOT])
    }

    /// The same with the folders in which debug files are kept, as `/usr/lib/debug` is.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_in(module: &Module, roots: &[&[u8]]) -> Result<Self, FileError> {
        let path = if module.name().is_empty() { program() } else { module.name() };
        let own = match Self::own(module, path) {
            Ok(Own::Symbols(found)) => return Ok(found),
            other => other,
        };
        // Debug files are found by the build id even if the object's own file is gone.
        let by_id = module.build_id().and_then(|id| {
            let mut paths = roots.iter().filter_map(|root| separate::by_build_id(root, &id));
            paths.find_map(|path| Self::separate(module, &path, None).ok())
        });
        if let Some(found) = by_id {
            return Ok(found);
        }
        let Own::Stripped { contents, link, compressed } = (match own? {
            Own::Symbols(found) => return Ok(found),
            stripped => stripped,
        }) else {
            return Err(FileError::Stripped { path: path.into() });
        };
        if let Some((link, checksum)) = link {
            let mut paths = separate::by_link(roots, &real_path(path), &link).into_iter();
            if let Some(found) = paths.find_map(|path| Self::separate(module, &path, Some(checksum)).ok()) {
                return Ok(found);
            }
        }
        let compressed = compressed.ok_or_else(|| FileError::Stripped { path: path.into() })?;
        if compressed.len() > compressed::INPUT_MAX {
            return Err(FileError::TooLarge { path: path.into(), len: compressed.len() as u64 });
        }
        let bytes = contents.get(compressed).ok_or_else(|| FileError::Stripped { path: path.into() })?;
        let contents = compressed::decompress(path, bytes)?;
        let place = Opened::new(path, &contents)?.place()?;
        let place = place.ok_or_else(|| FileError::Stripped { path: path.into() })?;
        Ok(Self::new(path, Source::Compressed, contents, place, module))
    }

    fn new(path: &[u8], source: Source, contents: Contents, place: Place, module: &Module) -> Self {
        Self { path: path.into(), source, table: Table::new(contents, place, module.bias()) }
    }

    /// Looks into the object's own file.
    fn own(module: &Module, path: &[u8]) -> Result<Own, FileError> {
        if !path.contains(&b'/') {
            // No file's: the vDSO, for one. The current folder has nothing to do with it.
            return Err(FileError::Unreadable { path: path.into(), errno: Errno(libc::ENOENT) });
        }
        let contents = Contents::open(path)?;
        let opened = Opened::new(path, &contents)?;
        opened.check(module)?;
        if let Some(place) = opened.place()? {
            return Ok(Own::Symbols(Self::new(path, Source::Own, contents, place, module)));
        }
        let link = opened.link();
        let compressed = opened.section(b".gnu_debugdata");
        Ok(Own::Stripped { link, compressed, contents })
    }

    /// Looks into a debug file. One without a build id has to have the checksum.
    fn separate(module: &Module, path: &[u8], checksum: Option<u32>) -> Result<Self, FileError> {
        let contents = Contents::open(path)?;
        let opened = Opened::new(path, &contents)?;
        let (found, loaded) = (opened.build_id(), module.build_id());
        let belongs = match (&found, &loaded) {
            (Some(found), Some(loaded)) => found == loaded,
            _ => checksum.is_some() && contents.crc32() == checksum,
        };
        if !belongs {
            return Err(FileError::Replaced { path: path.into(), found, loaded });
        }
        let place = opened.place()?.ok_or_else(|| FileError::Stripped { path: path.into() })?;
        Ok(Self::new(path, Source::Separate, contents, place, module))
    }

    /// The file that they came from.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Which kind of file that is.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Calls `each` with every symbol of this name. Several static functions may have the same.
    pub fn for_each_of_name<'a>(&'a self, name: &[u8], each: &mut dyn FnMut(FileSymbol<'a>)) {
        self.table.for_each_of_name(name, each);
    }

    /// The function around an address.
    pub fn function_at(&self, address: usize) -> Option<FileSymbol<'_>> {
        self.table.function_at(address)
    }

    /// The addresses of all functions whose length is known.
    pub(crate) fn functions(&self) -> impl Iterator<Item = Range<usize>> {
        self.table.functions()
    }

    /// All symbols that have a name and an address, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = FileSymbol<'_>> {
        self.table.iter()
    }
}

/// What an object's own file has.
enum Own {
    Symbols(FileSymbols),
    Stripped {
        contents: Contents,
        /// The name of a debug file, and its checksum.
        link: Option<(Vec<u8>, u32)>,
        compressed: Option<Range<usize>>,
    },
}

impl<'a> Opened<'a> {
    fn new(path: &'a [u8], contents: &'a Contents) -> Result<Self, FileError> {
        let malformed = |what| contents.failure(path, what);
        let header =
            Elf::parse(contents).map_err(|_| malformed("it is no ELF file of this machine's kind"))?;
        // Before they are read.
        if header.shnum(NativeEndian, contents).is_ok_and(|count| count > HEADERS_MAX) {
            return Err(malformed("it has more sections than any object"));
        }
        if header.phnum(NativeEndian, contents).is_ok_and(|count| count > HEADERS_MAX) {
            return Err(malformed("it has more segments than any object"));
        }
        let sections = header
            .sections(NativeEndian, contents)
            .map_err(|_| malformed("its section headers lie outside the file"))?;
        Ok(Self { path, contents, header, sections })
    }

    fn malformed(&self, what: &'static str) -> FileError {
        self.contents.failure(self.path, what)
    }

    fn place(&self) -> Result<Option<Place>, FileError> {
        table::place(self.contents, &self.sections).map_err(|what| self.malformed(what))
    }

    /// Where a section's bytes are in the file.
    fn section(&self, name: &[u8]) -> Option<Range<usize>> {
        let (_, section) = self.sections.section_by_name(NativeEndian, name)?;
        let (offset, len) = section.file_range(NativeEndian)?;
        Some(usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(len)?).ok()?)
    }

    /// The name of the debug file, and the checksum in the four bytes behind it and its filling.
    fn link(&self) -> Option<(Vec<u8>, u32)> {
        let section = self.section(b".gnu_debuglink").filter(|section| section.len() <= 2 * NAME_MAX)?;
        let bytes = self.contents.get(section)?;
        let len = bytes.iter().position(|&byte| byte == 0)?;
        let checksum = bytes.get((len + 1).checked_next_multiple_of(4)?..)?.first_chunk()?;
        Some((bytes.get(..len)?.into(), u32::from_ne_bytes(*checksum)))
    }

    fn build_id(&self) -> Option<BuildId> {
        let headers = self.header.program_headers(NativeEndian, self.contents).unwrap_or(&[]);
        let segments = headers.iter().filter(|header| header.p_type(NativeEndian) == PT_NOTE);
        let notes = segments.map(|header| header.file_range(NativeEndian));
        // Debug files keep the section, and have no bytes for the segment.
        let sections = self.sections.iter().filter(|section| section.sh_type(NativeEndian) == SHT_NOTE);
        let sections = sections.filter_map(|section| section.file_range(NativeEndian));
        // Together they may name the same bytes over and over.
        let mut left = NOTES_MAX;
        notes.chain(sections).find_map(|(offset, len)| {
            let len = usize::try_from(len).ok().filter(|len| *len <= left)?;
            left -= len;
            BuildId::in_notes(self.contents.read_bytes_at(offset, len as u64).ok()?)
        })
    }

    /// Whether it is the file that the object was loaded from.
    fn check(&self, module: &Module) -> Result<(), FileError> {
        let (found, loaded) = (self.build_id(), module.build_id());
        let same = match (&found, &loaded) {
            (None, None) => self.looks_like(module),
            _ => found == loaded,
        };
        match same {
            true => Ok(()),
            false => Err(FileError::Replaced { path: self.path.into(), found, loaded }),
        }
    }

    /// Whether what neither relocation nor a hook changes is the same in both: the headers, the names of the dynamic
    /// symbols and the unwind index, which has the address of every function.
    fn looks_like(&self, module: &Module) -> bool {
        let Ok(headers) = self.header.program_headers(NativeEndian, self.contents) else { return false };
        let address = |linked: u64| module.bias().wrapping_add(linked as usize);
        // What isn't mapped needn't be read.
        let is_mapped = |at: usize, (offset, len): (u64, u64)| {
            let end = usize::try_from(len).ok().and_then(|len| at.checked_add(len));
            let mapped = end.and_then(|end| module.slice(at, Some(end)));
            let mapped = mapped.filter(|mapped| mapped.len() as u64 == len);
            mapped.is_some_and(|mapped| self.contents.read_bytes_at(offset, len) == Ok(mapped))
        };
        let mut known = 0;
        for header in headers {
            let (start, kind) = (wide(header.p_offset(NativeEndian)), header.p_type(NativeEndian));
            let at = address(wide(header.p_vaddr(NativeEndian)));
            if kind == PT_LOAD && start == 0 {
                let end = wide(self.header.e_phoff(NativeEndian)).saturating_add(size_of_val(headers) as u64);
                known += 1;
                if !is_mapped(at, (0, end)) {
                    return false;
                }
            }
            if kind == PT_GNU_EH_FRAME {
                known += 1;
                if !is_mapped(at, header.file_range(NativeEndian)) {
                    return false;
                }
            }
        }
        if let Some(start) = module.dynamic().strings
            && let Some((_, section)) = self.sections.section_by_name(NativeEndian, b".dynstr")
        {
            let strings = section.file_range(NativeEndian);
            if !strings.is_some_and(|strings| is_mapped(start, strings)) {
                return false;
            }
        }
        known > 0
    }
}

/// The path that a link stands for, for the main program.
fn real_path(path: &[u8]) -> Vec<u8> {
    let mut buf = [0; 4096];
    let is_program = PROGRAM.iter().any(|name| name.to_bytes() == path);
    let link = is_program.then(|| CString::new(path).ok()).flatten();
    let target = link.and_then(|link| sys::read_link(&link, &mut buf).ok());
    target.unwrap_or(path).into()
}
