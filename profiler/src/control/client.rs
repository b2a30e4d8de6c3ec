//! The side of the commands that ask: finds recordings, and asks them.

use super::directory::Directory;
use super::protocol::{Answer, MAX_ANSWER, Request, Status};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a recording may say nothing, besides what the answer takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ControlError {
    /// Nobody records that process.
    #[error("{0}: no process of this id is recorded; `grapnel list` tells which are")]
    NotFound(u32),
    /// The recording doesn't answer, or something else than can be understood.
    #[error("the recording does not answer: {0}; it may have ended")]
    Silent(io::Error),
    /// It answers what was not asked.
    #[error("the recording answers something else: it may be of another version of grapnel")]
    Unexpected,
    /// It says no.
    #[error("{0}")]
    Refused(String),
    /// The file can't be written.
    #[error("{path}: the snapshot can't be written: {error}; choose another place with -o")]
    Output {
        /// The file.
        path: String,
        /// Why not.
        error: io::Error,
    },
    /// Nothing can be said.
    #[error("the answer can't be written: {0}")]
    Say(io::Error),
}

/// A connection to a recording.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// When there is none, or it is a refusal.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Answer, ControlError> {
        let patience = PATIENCE + request.patience();
        self.stream.get_ref().set_read_timeout(Some(patience)).map_err(ControlError::Silent)?;
        let mut line = serde_json::to_vec(request).map_err(|error| ControlError::Silent(error.into()))?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(ControlError::Silent)?;
        line.clear();
        let read = (&mut self.stream).take(MAX_ANSWER as u64).read_until(b'\n', &mut line);
        read.map_err(ControlError::Silent)?;
        if line.is_empty() {
            return Err(ControlError::Silent(io::ErrorKind::UnexpectedEof.into()));
        }
        match serde_json::from_slice(&line).map_err(|_| ControlError::Unexpected)? {
            Answer::Refused { error } => Err(ControlError::Refused(error)),
            answer => Ok(answer),
        }
    }

    /// The bytes that follow an answer.
    pub(crate) fn bytes(&mut self, len: u64, out: &mut dyn Write) -> io::Result<()> {
        match io::copy(&mut (&mut self.stream).take(len), out)? {
            copied if copied == len => Ok(()),
            _ => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the recording ended before all was copied"))
            }
        }
    }

    /// The same, to be read.
    pub(crate) fn into_read(self, len: u64) -> impl Read + Send {
        self.stream.take(len)
    }

    fn status(&mut self) -> Result<Status, ControlError> {
        match self.ask(&Request::Status {})? {
            Answer::Status(status) => Ok(status),
            _ => Err(ControlError::Unexpected),
        }
    }
}

/// All recordings that this user may ask, with how they stand. Those that don't answer are left out.
pub(crate) fn recordings() -> Vec<(Client, Status)> {
    let streams = Directory::all().into_iter().flat_map(|directory| directory.connect());
    let asked = streams.filter_map(|(_, stream)| {
        let mut client = Client::new(stream).ok()?;
        let status = client.status().ok()?;
        Some((client, status))
    });
    asked.collect()
}

/// The recording of a process, or by this grapnel.
pub(crate) fn recording_of(pid: u32) -> Result<(Client, Status), ControlError> {
    let is_it =
        |status: &Status| status.grapnel == pid || status.processes.iter().any(|process| process.pid == pid);
    recordings().into_iter().find(|(_, status)| is_it(status)).ok_or(ControlError::NotFound(pid))
}
