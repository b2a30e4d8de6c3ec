//! As much of HTTP as pages and figures need: a request's head, read within bounds, and an answer; a bounded number of
//! connections, each with a thread of its own.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Connections that may be open at once. A browser keeps some open before it needs them.
pub(crate) const MAX_CONNECTIONS: usize = 32;
/// The longest head of a request that is read.
const MAX_HEAD: usize = 16 << 10;
/// The most headers that it may have.
pub(crate) const MAX_HEADERS: usize = 64;
/// How long the whole head may take, and how long nothing of an answer may be taken.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is another answer than what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is no request.
    Malformed,
    /// It is for another host.
    Host,
    /// It wants more than to read.
    Method,
    /// There is no such thing, or the secret is wrong.
    NotFound,
    /// The secret is missing, or another user asks.
    Unauthorized,
    /// Its head doesn't end.
    TooLong,
}

impl Refusal {
    /// The status, and what it means.
    pub(crate) fn status(self) -> &'static str {
        match self {
            Self::Malformed => "400 Bad Request",
            Self::Host => "421 Misdirected Request",
            Self::Method => "405 Method Not Allowed",
            Self::NotFound => "404 Not Found",
            Self::Unauthorized => "401 Unauthorized",
            Self::TooLong => "431 Request Header Fields Too Large",
        }
    }

    /// Says so.
    ///
    /// # Errors
    /// What writing gives.
    pub(crate) fn answer(self, stream: &mut TcpStream) -> io::Result<()> {
        answer(stream, self.status(), "text/plain; charset=utf-8", self.status().as_bytes())
    }
}

/// Reads a request. `parse` is given the head as far as it came, and answers `None` if more of it is to come.
///
/// # Errors
/// When nobody is there any more, or takes too long.
pub(crate) fn read<T>(
    stream: &mut TcpStream,
    parse: impl Fn(&[u8]) -> Option<Result<T, Refusal>>,
) -> io::Result<Result<T, Refusal>> {
    let start = Instant::now();
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    loop {
        let left = PATIENCE.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        let mut buffer = [0; 2048];
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&buffer[..len]);
        if let Some(answer) = parse(&head) {
            return Ok(answer);
        }
        if head.len() > MAX_HEAD {
            return Ok(Err(Refusal::TooLong));
        }
    }
}

/// Parses a head; `None` if more of it is to come.
pub(crate) fn parse<'h, 'b>(
    request: &mut httparse::Request<'h, 'b>,
    head: &'b [u8],
) -> Option<Result<(), Refusal>> {
    match request.parse(head) {
        Ok(status) if status.is_partial() => None,
        Ok(_) => Some(Ok(())),
        Err(httparse::Error::TooManyHeaders) => Some(Err(Refusal::TooLong)),
        Err(_) => Some(Err(Refusal::Malformed)),
    }
}

/// The value of a header that must be there once. Several could be understood in several ways.
pub(crate) fn only_header<'b>(request: &httparse::Request<'_, 'b>, name: &str) -> Option<&'b [u8]> {
    let mut all = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
    let value = all.next().map(|header| header.value);
    if all.next().is_some() { None } else { value }
}

/// Answers, and ends the connection.
///
/// # Errors
/// What writing gives.
pub(crate) fn answer(stream: &mut TcpStream, status: &str, kind: &str, body: &[u8]) -> io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n\
         Referrer-Policy: no-referrer\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body)?;
    stream.flush()
}

/// Takes connections until that fails, and handles each in a thread of its own.
pub(crate) fn listen(
    listener: &TcpListener,
    handle: impl Fn(TcpStream) + Clone + Send + 'static,
) -> io::Error {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_passing(&error) => continue,
            Err(error) => return error,
        };
        // One more than can be served is closed at once.
        if open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (handle, ended) = (handle.clone(), Arc::clone(&open));
        let work = move || {
            handle(stream);
            ended.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("http".into()).spawn(work).is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether the next connection may still be taken.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}
