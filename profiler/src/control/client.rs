//! The side of the commands that ask: finds recordings, and asks them.

use super::directory::Directory;
use super::peer::Peer;
use super::protocol::{Answer, MAX_ANSWER, Request, Status};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

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
        self.say(request)?;
        self.answer(Instant::now() + PATIENCE + request.patience())
    }

    fn say(&mut self, request: &Request) -> Result<(), ControlError> {
        let mut line = serde_json::to_vec(request).map_err(|error| ControlError::Silent(error.into()))?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(ControlError::Silent)
    }

    /// The answer. All of it has to be there in time: one that comes byte by byte would never end.
    fn answer(&mut self, deadline: Instant) -> Result<Answer, ControlError> {
        let line = self.line(deadline).map_err(ControlError::Silent)?;
        match serde_json::from_slice(&line).map_err(|_| ControlError::Unexpected)? {
            Answer::Refused { error } => Err(ControlError::Refused(error)),
            answer => Ok(answer),
        }
    }

    fn line(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        while line.len() < MAX_ANSWER {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.get_ref().set_read_timeout(Some(left))?;
            let bytes = match self.stream.fill_buf() {
                // Whoever was stopped and goes on, for instance.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                bytes => bytes?,
            };
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let len = end.map_or(bytes.len(), |end| end + 1);
            line.extend_from_slice(&bytes[..len]);
            self.stream.consume(len);
            match (end, len) {
                (Some(_), _) => break,
                (None, 0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                (None, _) => {}
            }
        }
        self.stream.get_ref().set_read_timeout(Some(PATIENCE))?;
        Ok(line)
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
}

/// All recordings that this user may ask, with how they stand. Those that don't answer in time, which is one time for all
/// together, are left out.
pub(crate) fn recordings() -> Vec<(Client, Status)> {
    let streams = Directory::all().into_iter().flat_map(|directory| directory.connect());
    let asked: Vec<Client> = streams
        .filter_map(|(_, stream)| {
            let mut client = Client::new(stream).ok()?;
            client.say(&Request::Status {}).ok()?;
            Some(client)
        })
        .collect();
    let deadline = Instant::now() + PATIENCE;
    let answered = asked.into_iter().filter_map(|mut client| match client.answer(deadline).ok()? {
        Answer::Status(status) => believed(client.stream.get_ref(), status).map(|status| (client, status)),
        _ => None,
    });
    answered.collect()
}

/// What a recording says of itself, without what can't be: another user's, whom root asks too, may claim what it likes.
fn believed(stream: &UnixStream, mut status: Status) -> Option<Status> {
    let peer = Peer::of(stream)?;
    let own = rustix::process::geteuid().as_raw();
    if peer.user != own && peer.user != 0 {
        // One that isn't here is in another namespace of processes.
        let is_its = |pid: u32| user_of(pid).is_none_or(|user| user == peer.user);
        status.processes.retain(|process| is_its(process.pid));
        if !is_its(status.grapnel) {
            status.grapnel = peer.pid;
        }
    }
    Some(status)
}

/// Whose a process is.
fn user_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

/// The recording of a process, or by this grapnel.
pub(crate) fn recording_of(pid: u32) -> Result<(Client, Status), ControlError> {
    let is_it =
        |status: &Status| status.grapnel == pid || status.processes.iter().any(|process| process.pid == pid);
    recordings().into_iter().find(|(_, status)| is_it(status)).ok_or(ControlError::NotFound(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_drips_is_given_up() {
        let (own, mut other) = UnixStream::pair().unwrap();
        let mut client = Client::new(own).unwrap();
        let dripping = std::thread::spawn(move || {
            while other.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let error = client.answer(Instant::now() + Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, ControlError::Silent(_)), "{error}");
        drop(client);
        dripping.join().unwrap();
    }

    #[test]
    fn what_follows_an_answer_is_still_there() {
        let (own, mut other) = UnixStream::pair().unwrap();
        let mut client = Client::new(own).unwrap();
        other.write_all(b"{\"answer\":\"done\"}\nrest").unwrap();
        let answer = client.answer(Instant::now() + PATIENCE).unwrap();
        assert_eq!(answer, Answer::Done);
        let mut rest = Vec::new();
        client.bytes(4, &mut rest).unwrap();
        assert_eq!(rest, b"rest");
    }
}
