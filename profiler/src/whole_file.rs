//! Files that are there whole or not at all.

use clap::builder::{PathBufValueParser, TypedValueParser};
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Whether a file to write is standard output: `-` is. A file of that name is `./-`.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// A file to write that is only of use as a file, on the command line.
pub(crate) fn true_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        if is_standard_output(&path) {
            return Err("it can't go to standard output; a file of that name is ./-");
        }
        Ok(path)
    })
}

/// Whether what is written to `one` goes to `two`, by any names: a link leads to the same.
pub(crate) fn is_same_file(one: &Path, two: &Path) -> bool {
    if is_standard_output(one) {
        return false;
    }
    let identity = |path: &Path| path.metadata().ok().map(|facts| (facts.dev(), facts.ino()));
    identity(one).is_some_and(|one| Some(one) == identity(two))
}

/// Writes a file whole or not at all; what was there before stays until then. What is no plain file, a pipe or a device, is
/// written into, and so is standard output, which is called `-`; who has read enough of that is no error.
pub(crate) fn to_file(
    path: &Path,
    mut write: impl FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if is_standard_output(path) {
        return to_standard_output(write);
    }
    if path.metadata().is_ok_and(|facts| !facts.is_file()) {
        return write(&mut BufWriter::new(File::options().write(true).open(path)?));
    }
    // A link stays one.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    // As any file is made: the user's mask applies.
    let permissions = path.metadata().map(|before| before.permissions()).ok();
    replace(&path, 0o666, permissions, write)
}

fn to_standard_output(mut write: impl FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// As [`to_file`], for nobody's eyes but the owner's. A link by that name is replaced, not followed, and what is no plain
/// file has to be this user's, or root's as the devices are: others could read from it.
pub(crate) fn to_private_file(
    path: &Path,
    mut write: impl FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if is_standard_output(path) {
        return to_standard_output(write);
    }
    if path.metadata().is_ok_and(|facts| !facts.is_file()) {
        let file = File::options().write(true).open(path)?;
        // What was opened, whatever has the name by now. What this process was given is the user's choice.
        let owner = file.metadata()?.uid();
        let is_given = GIVEN.iter().any(|given| path.starts_with(given));
        if !is_given && owner != 0 && owner != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it is no plain file, and another user's"));
        }
        return write(&mut BufWriter::new(file));
    }
    replace(path, 0o600, None, write)
}

/// Paths of descriptors that this process was given.
const GIVEN: [&str; 4] = ["/dev/fd", "/dev/stdout", "/dev/stderr", "/proc/self/fd"];

/// Writes a file for nobody's eyes but the owner's, whole or not at all, under the first of these names in one directory that
/// nothing has. Nothing that is there is written to, followed or replaced.
pub(crate) fn to_new_private_file(
    mut paths: impl Iterator<Item = PathBuf>,
    write: impl FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<PathBuf> {
    let none_left = || io::Error::from(io::ErrorKind::AlreadyExists);
    let mut path = paths.next().ok_or_else(none_left)?;
    let mut file = written(&path, 0o600, write)?;
    loop {
        match file.persist_noclobber(&path) {
            Ok(_) => return Ok(path),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                file = error.file;
                path = paths.next().ok_or_else(none_left)?;
            }
            Err(error) => return Err(error.error),
        }
    }
}

/// Writes a file of this mode whole or not at all; `permissions` are set besides, whatever the user's mask.
pub(crate) fn replace(
    path: &Path,
    mode: u32,
    permissions: Option<Permissions>,
    write: impl FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let file = written(path, mode, write)?;
    if let Some(permissions) = permissions {
        file.as_file().set_permissions(permissions)?;
    }
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// A file in the directory of a path, with all in it, that goes unless it is given a name.
fn written(
    path: &Path,
    mode: u32,
    mut write: impl FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<NamedTempFile> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // Opened here, and not by tempfile, whose errors would name a file that the user knows nothing of.
    let open = |path: &Path| File::options().read(true).write(true).create_new(true).mode(mode).open(path);
    let mut file = tempfile::Builder::new().prefix(".grapnel-").make_in(directory, open)?;
    let mut out = BufWriter::with_capacity(1 << 16, file.as_file_mut());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_new_file_follows_and_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = |number: u32| dir.path().join(number.to_string());
        let secret = path(9);
        std::fs::write(&secret, "before").unwrap();
        symlink(&secret, path(1)).unwrap();
        symlink(dir.path().join("nothing"), path(2)).unwrap();
        std::fs::write(path(3), "also").unwrap();
        let made = to_new_private_file((1..).map(path), |out| out.write_all(b"new")).unwrap();
        assert_eq!(made, path(4));
        assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o600);
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!([text(&made), text(&secret), text(&path(3))], ["new", "before", "also"]);
        assert!(path(2).symlink_metadata().unwrap().is_symlink());
        let error = to_file(&dir.path().join("none/x"), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(error.to_string(), io::Error::from_raw_os_error(2).to_string());
        let error = to_new_private_file([path(3)].into_iter(), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(dir.path().read_dir().unwrap().count(), 5, "nothing is left over");
    }
}
