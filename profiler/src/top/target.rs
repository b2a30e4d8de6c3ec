//! What is looked at: a trace, and who records it, if anybody does.

use crate::control::{ControlError, ProcessStatus, Status, recording_of, recordings};
use crate::opened::{OpenError, open_error, text_of, trace_error};
use crate::whole_file::is_same_file;
use grapnel_trace::growing::Growing;
use grapnel_trace::reader::Reader;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Why there is nothing to look at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TargetError {
    /// Nobody records that process.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The trace can't be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It can be read once only.
    #[error(
        "{0}: it is no plain file, and can't be looked at while it is written; give `grapnel run` one by -o"
    )]
    NotAFile(String),
}

/// What is looked at.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) reader: Reader<Growing<File>>,
    /// The same file.
    pub(super) file: File,
    /// The process, while somebody records it.
    pub(super) recorded: Option<u32>,
}

impl Target {
    /// By a process that is recorded, or the grapnel that records it; a number that names a file too means the process. Or by
    /// a trace.
    pub(super) fn find(name: &Path) -> Result<Self, TargetError> {
        if let Some(pid) = name.to_str().and_then(|text| text.parse().ok()) {
            match recording_of(pid) {
                Ok((_, status)) => return Self::of_process(pid, &status),
                Err(error) if !name.exists() => return Err(error.into()),
                Err(_) => {}
            }
        }
        let recorded = recordings().iter().find_map(|(_, status)| {
            let is_it = |process: &&ProcessStatus| is_same_file(&path_of(status, process), name);
            status.processes.iter().find(is_it).map(|process| process.pid)
        });
        Self::open(name, name, recorded)
    }

    fn of_process(pid: u32, status: &Status) -> Result<Self, TargetError> {
        let wanted = if pid == status.grapnel { status.program } else { pid };
        let process = status.processes.iter().find(|process| process.pid == wanted);
        let process = process.ok_or(ControlError::NotFound(pid))?;
        Self::open(&path_of(status, process), Path::new(&process.trace), Some(wanted))
    }

    /// `name`: what the file at `path` is called for people.
    fn open(path: &Path, name: &Path, recorded: Option<u32>) -> Result<Self, TargetError> {
        let opened = File::open(path).and_then(|file| Ok((file.try_clone()?, file)));
        let (file, input) = opened.map_err(|error| open_error(name, error))?;
        if file.metadata().is_ok_and(|facts| !facts.is_file() && !facts.is_dir()) {
            return Err(TargetError::NotAFile(text_of(name)));
        }
        let reader = Reader::new(Growing::new(input)).map_err(|error| trace_error(name, error))?;
        Ok(Self { reader, file, recorded })
    }
}

/// A trace where its recorder sees it: it may be in another directory, or another container.
fn path_of(status: &Status, process: &ProcessStatus) -> PathBuf {
    let trace = Path::new(&process.trace);
    let recorder = PathBuf::from(format!("/proc/{}", status.grapnel));
    match trace.strip_prefix("/") {
        Ok(inside) => recorder.join("root").join(inside),
        Err(_) => recorder.join("cwd").join(trace),
    }
}
