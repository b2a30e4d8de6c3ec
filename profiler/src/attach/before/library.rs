//! The C library of a process, as it lies in memory.

use super::super::target::MapLine;
use super::layout::Layout;
use super::object::{Object, read};
use super::{Unknown, View};
use std::ops::Range;

/// Functions of the file of glibc's that has `malloc`: what lies between them is of that file too.
const FAMILY: [&[u8]; 15] = [
    b"malloc",
    b"free",
    b"calloc",
    b"realloc",
    b"memalign",
    b"aligned_alloc",
    b"posix_memalign",
    b"valloc",
    b"pvalloc",
    b"malloc_trim",
    b"malloc_usable_size",
    b"mallinfo",
    b"mallopt",
    b"malloc_stats",
    b"malloc_info",
];
/// How much of that file's code lies before the first of them, at most: functions that aren't exported.
const BEFORE: u64 = 0x3800;

/// What is known of it.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) layout: Layout,
    /// All of it, from the first of its mappings to the last.
    pub(super) image: Range<u64>,
    /// Its variables: those that can be written to.
    data: Range<u64>,
    /// All of its code.
    pub(super) text: Range<u64>,
    /// The code of `malloc` and its kin.
    pub(super) malloc: Range<u64>,
    /// Where threads have variables of the library's, by offsets from the thread pointer.
    pub(super) thread_variables: Vec<u64>,
}

impl Library {
    /// The C library, if a process has glibc.
    pub(super) fn object(view: View<'_>, maps: &[MapLine]) -> Result<Object, Unknown> {
        let is_library = |line: &&MapLine| line.inode != 0 && is_glibc(&line.name);
        Object::at(view, maps.iter().find(is_library).ok_or(Unknown::NoLibrary)?)
    }

    pub(super) fn of(view: View<'_>, object: &Object) -> Result<Self, Unknown> {
        Ok(Self {
            layout: version(view, object)?,
            image: object.image.clone(),
            data: object.data()?,
            text: object.text()?,
            malloc: functions(view, object)?,
            thread_variables: object.thread_variables(view)?,
        })
    }

    /// All of its variables, and where they lie.
    pub(super) fn data(&self, view: View<'_>) -> Result<(u64, Vec<u8>), Unknown> {
        let start = self.data.start.next_multiple_of(8);
        Ok((start, read(view, start..self.data.end)?))
    }
}

/// Whether a mapped file is glibc. Until 2.33 `libc.so.6` was a link to a file that has its version in its name; and who goes on
/// after an upgrade has the one of before, whose name is gone.
fn is_glibc(path: &str) -> bool {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_version = |text: &str| text.starts_with("2.") && text.ends_with(".so");
    path.starts_with('/') && (name == "libc.so.6" || name.strip_prefix("libc-").is_some_and(is_version))
}

/// The 36 of "... stable release version 2.36.", which the library prints when it is run.
fn version(view: View<'_>, object: &Object) -> Result<Layout, Unknown> {
    const BANNER: &[u8] = b"GNU C Library (";
    const VERSION: &[u8] = b" release version ";
    for constants in object.constants() {
        let bytes = read(view, constants)?;
        let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|found| found == what);
        let Some(banner) = find(&bytes, BANNER).map(|at| &bytes[at..]) else { continue };
        let line = &banner[..banner.len().min(256)];
        let Some(at) = find(line, VERSION) else { continue };
        let text = String::from_utf8_lossy(&line[at + VERSION.len()..]);
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
        let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else { break };
        let layout = Layout::of(minor).filter(|_| major == 2);
        return layout.ok_or(Unknown::Version { major, minor });
    }
    Err(Unknown::Tables)
}

/// From the first to the last function of the family, and a little before.
fn functions(view: View<'_>, object: &Object) -> Result<Range<u64>, Unknown> {
    let found = object.defined(view, &FAMILY)?;
    let start = found.iter().map(|range| range.start).min().ok_or(Unknown::Tables)?;
    let end = found.iter().map(|range| range.end).max().ok_or(Unknown::Tables)?;
    Ok(start.saturating_sub(BEFORE).max(object.image.start)..end)
}

#[cfg(test)]
mod tests {
    use super::is_glibc;

    #[test]
    fn glibc_is_known_by_each_name_that_it_had() {
        for path in [
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
            "/usr/lib/x86_64-linux-gnu/libc.so.6 (deleted)",
            "/lib/x86_64-linux-gnu/libc-2.31.so",
            "/lib64/libc-2.17.so (deleted)",
        ] {
            assert!(is_glibc(path), "{path}");
        }
        for path in
            ["/lib/libc.so", "/lib/libcap.so.2", "/lib/libc-client.so.2007e", "libc.so.6", "[heap]", ""]
        {
            assert!(!is_glibc(path), "{path}");
        }
    }
}
