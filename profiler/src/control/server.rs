//! The side of the recording: takes connections, and passes on what is asked.

use super::desk::{Desk, Reply};
use super::directory::{Directory, DirectoryError};
use super::peer::Peer;
use super::protocol::{Answer, MAX_REQUEST, Refusal, Request};
use crate::places::Places;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Connections that are served at once. One more is closed.
const MAX_CONNECTIONS: usize = 16;
/// How long a client may say nothing, and how long it may take nothing.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the end of a recording waits for answers that are under way.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// The socket of a recording, from its start to its end.
#[derive(Debug)]
pub(crate) struct Server {
    directory: Directory,
    desk: Arc<Desk>,
    busy: Arc<AtomicUsize>,
}

impl Server {
    /// Makes the socket and opens the desk. The threads end with this process.
    ///
    /// # Errors
    /// When there is no safe place for it.
    pub(crate) fn start(desk: &Arc<Desk>) -> Result<Self, DirectoryError> {
        let directory = Directory::for_new()?;
        // Those of recordings that were killed.
        drop(directory.connect());
        let listener = directory.listen(std::process::id())?;
        desk.open();
        let server = Self { directory, desk: Arc::clone(desk), busy: Arc::default() };
        let (desk, busy) = (Arc::clone(desk), Arc::clone(&server.busy));
        let started =
            std::thread::Builder::new().name("control".into()).spawn(move || listen(&listener, &desk, &busy));
        // Without the thread, the listener is gone and the socket with it.
        drop(started);
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.directory.remove(std::process::id());
        self.desk.close();
        let since = Instant::now();
        while self.busy.load(Ordering::Acquire) != 0 && since.elapsed() < LAST_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Counts answers that are under way.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn listen(listener: &UnixListener, desk: &Arc<Desk>, busy: &Arc<AtomicUsize>) {
    let places = Places::new(MAX_CONNECTIONS);
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(_) => {
                // No descriptors left, for now.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if !is_allowed(&stream) {
            continue;
        }
        let Some(place) = places.take() else { continue };
        let (desk, busy) = (Arc::clone(desk), Arc::clone(busy));
        let serve = move || {
            let _place = place;
            // Whoever goes away, or is silent, is not waited for.
            drop(serve(&stream, &desk, &busy));
        };
        // Without the thread the connection is closed, and its place free.
        drop(std::thread::Builder::new().name("client".into()).spawn(serve));
    }
}

/// The directory lets nobody else in; who was in it before it was closed, or got the descriptor, is not served either.
fn is_allowed(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    Peer::of(stream).is_some_and(|peer| peer.user == 0 || peer.user == own)
}

fn serve(stream: &UnixStream, desk: &Desk, busy: &AtomicUsize) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut input = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let len = (&mut input).take(MAX_REQUEST as u64 + 1).read_until(b'\n', &mut line)?;
        if len == 0 {
            return Ok(());
        }
        let _busy = Busy::new(busy);
        if line.pop() != Some(b'\n') {
            // One that is short was broken off: nobody waits for the answer.
            return if len > MAX_REQUEST { say(stream, &refused(&Refusal::TooLong)) } else { Ok(()) };
        }
        let request = match serde_json::from_slice::<Request>(&line) {
            Ok(request) => request,
            Err(error) => {
                say(stream, &refused(&Refusal::Unknown(error.to_string())))?;
                continue;
            }
        };
        match desk.ask(request) {
            Ok(Reply::Status(status)) => say(stream, &Answer::Status(status))?,
            Ok(Reply::Marked(time_ns)) => say(stream, &Answer::Marked { time_ns })?,
            Ok(Reply::Done) => say(stream, &Answer::Done)?,
            Ok(Reply::Snapshot(source)) => {
                let trace = source.path.to_string_lossy().into_owned();
                say(stream, &Answer::Snapshot { bytes: source.bytes(), trace })?;
                source.write_to(&mut &*stream)?;
            }
            Err(refusal) => say(stream, &refused(&refusal))?,
        }
    }
}

fn refused(refusal: &Refusal) -> Answer {
    Answer::Refused { error: refusal.to_string() }
}

fn say(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}
