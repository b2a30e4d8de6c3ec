//! Files that are there whole or not at all.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// By any names: a link leads to the same.
pub(crate) fn is_same_file(one: &Path, two: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|facts| (facts.dev(), facts.ino()));
    identity(one).is_some_and(|one| Some(one) == identity(two))
}

/// Writes a file whole or not at all; what was there before stays until then. What is no plain file, a pipe or a device, is
/// written into.
pub(crate) fn to_file(
    path: &Path,
    mut write: impl FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if path.metadata().is_ok_and(|facts| !facts.is_file()) {
        return write(&mut BufWriter::new(File::options().write(true).open(path)?));
    }
    // A link stays one.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    // As any file is made: the user's mask applies.
    let permissions = path.metadata().map(|before| before.permissions()).ok();
    replace(&path, 0o666, permissions, write)
}

/// As [`to_file`], for nobody's eyes but the owner's. A link by that name is replaced, not followed.
pub(crate) fn to_private_file(
    path: &Path,
    mut write: impl FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if path.metadata().is_ok_and(|facts| !facts.is_file()) {
        return write(&mut BufWriter::new(File::options().write(true).open(path)?));
    }
    replace(path, 0o600, None, write)
}

fn replace(
    path: &Path,
    mode: u32,
    permissions: Option<Permissions>,
    mut write: impl FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut options = tempfile::Builder::new();
    options.permissions(Permissions::from_mode(mode));
    let mut file = options.prefix(".grapnel-").tempfile_in(directory)?;
    let mut out = BufWriter::with_capacity(1 << 16, file.as_file_mut());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    if let Some(permissions) = permissions {
        file.as_file().set_permissions(permissions)?;
    }
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
