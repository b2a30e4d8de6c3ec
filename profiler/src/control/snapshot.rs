//! A trace as it is at one moment.

use super::client::ControlError;
use crate::whole_file;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Where a trace up to some moment is: the start of a file that grows, and what makes an end of it.
#[derive(Debug)]
pub(crate) struct SnapshotSource {
    /// A descriptor of its own, with a position of its own.
    pub(crate) file: File,
    /// How many bytes of it.
    pub(crate) len: u64,
    /// What comes behind them.
    pub(crate) end: Vec<u8>,
    /// The trace's path.
    pub(crate) path: PathBuf,
}

impl SnapshotSource {
    /// Its length.
    pub(super) fn bytes(&self) -> u64 {
        self.len + self.end.len() as u64
    }

    /// Its bytes, to be read.
    ///
    /// # Errors
    /// What seeking gives.
    pub(crate) fn into_read(mut self) -> io::Result<impl Read + Send> {
        self.file.rewind()?;
        Ok(self.file.take(self.len).chain(io::Cursor::new(self.end)))
    }

    /// Copies it. A file that somebody cut short meanwhile gives an error.
    pub(super) fn write_to(&self, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        let mut file = &self.file;
        file.rewind()?;
        let copied = io::copy(&mut file.take(self.len), out)?;
        if copied != self.len {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the trace was cut off"));
        }
        out.write_all(&self.end)
    }
}

/// Writes a snapshot's file beside a trace, or in the current directory, under a name that nothing has:
/// `NAME.snapshot-N.grapnel`. These names can be foreseen, so whatever somebody put there is left alone.
pub(super) fn to_free_file(
    directory: &Path,
    trace: &Path,
    write: impl FnMut(&mut dyn Write) -> io::Result<()>,
) -> Result<PathBuf, ControlError> {
    let name = trace.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = name.strip_suffix(".grapnel").unwrap_or(&name);
    let path = |number: u32| directory.join(format!("{stem}.snapshot-{number}.grapnel"));
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    whole_file::to_new_private_file((1..).map(path).filter(is_free), write)
        .map_err(|error| ControlError::Output { path: path(1).display().to_string(), error })
}

/// Writes a snapshot's file: whole or not at all, and for nobody but its owner.
pub(crate) fn to_file(
    path: &Path,
    write: impl FnMut(&mut dyn Write) -> io::Result<()>,
) -> Result<(), ControlError> {
    whole_file::to_private_file(path, write)
        .map_err(|error| ControlError::Output { path: path.display().to_string(), error })
}
