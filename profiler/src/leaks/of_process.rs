//! A process that is recorded, asked to be looked through.

use super::Wanted;
use crate::control::{Answer, Client, ControlError, Request, recording_of, to_file};
use crate::opened::{self, OpenError};
use grapnel_analysis::{Analysis, analyse};
use grapnel_trace::reader::Reader;
use std::io::BufReader;
use std::path::Path;

/// Why a process is not looked through.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ProcessError {
    /// Nobody records it.
    #[error(
        "{0}: this process is not recorded, so nothing is known of its blocks: `grapnel attach {0}` records those from now on, `grapnel run` all of them"
    )]
    NotRecorded(u32),
    /// The recording can't be asked, or says no.
    #[error("{0}")]
    Control(ControlError),
    /// What it says can't be read.
    #[error(transparent)]
    Trace(#[from] OpenError),
}

/// Has a process looked through, and reads its trace, which has what was found, from the recording, or writes that to a file
/// first.
///
/// # Errors
/// When it isn't recorded, or can't be looked through.
pub(super) fn analysis_of(pid: u32, wanted: Wanted, output: Option<&Path>) -> Result<Analysis, ProcessError> {
    let (mut client, _): (Client, _) = recording_of(pid).map_err(|error| match error {
        ControlError::NotFound(pid) => ProcessError::NotRecorded(pid),
        error => ProcessError::Control(error),
    })?;
    let answer = client.ask(&Request::Leaks { pid, wanted }).map_err(ProcessError::Control)?;
    let Answer::Snapshot { bytes, trace } = answer else {
        return Err(ProcessError::Control(ControlError::Unexpected));
    };
    if let Some(output) = output {
        to_file(output, |out| client.bytes(bytes, out)).map_err(ProcessError::Control)?;
        return Ok(opened::analysis_of(output)?);
    }
    let reader = Reader::new(BufReader::with_capacity(1 << 18, client.into_read(bytes)));
    let reader = reader.map_err(|error| OpenError::Trace { path: trace, error, hint: "" })?;
    Ok(analyse(reader))
}
