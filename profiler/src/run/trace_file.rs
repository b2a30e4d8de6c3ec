//! PROGRAM's trace as a file: nobody's but its owner's, and nobody is led elsewhere.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Only the owner may read it: it tells what a program does.
pub(super) const MODE: u32 = 0o600;

/// Opens a trace for writing, with what is in it. A file that was there becomes its owner's alone. A pipe or a device is
/// taken as it is.
///
/// # Errors
/// What opening gives; where somebody else made the file or the link by that name, an error that says so.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(MODE);
    // Who made a pipe by this name would read it all, and where nobody reads, opening it never ends. One that is handed over as a
    // descriptor has no name here.
    if let Ok(facts) = path.symlink_metadata()
        && facts.file_type().is_fifo()
        && !is_trusted(facts.uid())
    {
        return Err(io::Error::other("another user's pipe has this name"));
    }
    let file = match options.clone().custom_flags(libc::O_NOFOLLOW).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            if !is_trusted(path.symlink_metadata()?.uid()) {
                return Err(io::Error::other("another user made a link by this name"));
            }
            options.open(path)?
        }
        opened => opened?,
    };
    let facts = file.metadata()?;
    if facts.is_file() {
        if facts.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("another user's file has this name"));
        }
        if facts.mode() & 0o077 != 0 {
            file.set_permissions(Permissions::from_mode(MODE))?;
        }
    }
    Ok(file)
}

/// Whether links of this user may be followed.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Makes a trace where nothing is: no file, and no link of anybody's.
///
/// # Errors
/// What opening gives; [`io::ErrorKind::AlreadyExists`] where something is.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(MODE).open(path)
}

/// Makes a child's trace. Its name can be foretold, and part of it is the child's choice: no link is followed, and an
/// old file makes room.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    match create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(path)?;
            create(path)
        }
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_trace_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (old, link, child) = (dir.path().join("old"), dir.path().join("link"), dir.path().join("child"));
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        std::fs::write(&old, "what was there").unwrap();
        std::fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        symlink(&old, &link).unwrap();
        // One's own link is followed, and nothing is lost yet.
        assert_eq!(open(&link).unwrap().metadata().unwrap().len(), 14);
        assert_eq!(mode(&old), MODE);
        open(&dir.path().join("new")).unwrap();
        assert_eq!(mode(&dir.path().join("new")), MODE);
        symlink(&old, &child).unwrap();
        create_new(&child).unwrap();
        assert!(!child.is_symlink() && old.metadata().unwrap().len() == 14);
        assert_eq!(mode(&child), MODE);
    }
}
