//! As much of HTTP as pages and figures need: a request's head, read within bounds, and an answer.

mod connections;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

pub(crate) use connections::{MAX_CONNECTIONS, Unheard, listen};

/// The longest head of a request that is read.
const MAX_HEAD: usize = 16 << 10;
/// The most headers that it may have.
pub(crate) const MAX_HEADERS: usize = 64;
/// How long the whole head may take, and how long nothing of an answer may be taken.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long somebody who is sent away may take to read that.
const LAST_PATIENCE: Duration = Duration::from_millis(50);

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
    pub(crate) fn answer(self, stream: &mut TcpStream, body: Body) -> io::Result<()> {
        // What each of these must say besides (RFC 9110, 11.6.1 and 15.5.6).
        let remedy = match self {
            Self::Unauthorized => "WWW-Authenticate: Bearer\r\n",
            Self::Method => "Allow: GET, HEAD\r\n",
            _ => "",
        };
        let text = self.status().as_bytes();
        answer_with(stream, self.status(), "text/plain; charset=utf-8", remedy, (body, text))
    }
}

/// Whether the body of an answer is sent, or only what is said of it (RFC 9110, 9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// It is.
    Sent,
    /// HEAD was asked for.
    Left,
}

impl Body {
    fn wanted_by(head: &[u8]) -> Self {
        if head.starts_with(b"HEAD ") { Self::Left } else { Self::Sent }
    }
}

/// Reads a request. `parse` is given the head as far as it came, and answers `None` if more of it is to come.
///
/// # Errors
/// When nobody is there any more, or takes too long, also where others wait for the place.
pub(crate) fn read<T>(
    stream: &mut TcpStream,
    unheard: &Unheard,
    parse: impl Fn(&[u8]) -> Option<Result<T, Refusal>>,
) -> io::Result<(Result<T, Refusal>, Body)> {
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
            unheard.take().ok_or(io::ErrorKind::ConnectionAborted)?;
            return Ok((answer, Body::wanted_by(&head)));
        }
        if head.len() > MAX_HEAD {
            return Ok((Err(Refusal::TooLong), Body::wanted_by(&head)));
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
pub(crate) fn answer(
    stream: &mut TcpStream,
    status: &str,
    kind: &str,
    body: (Body, &[u8]),
) -> io::Result<()> {
    answer_with(stream, status, kind, "", body)
}

/// The same with further headers, each a whole line.
fn answer_with(
    stream: &mut TcpStream,
    status: &str,
    kind: &str,
    more: &str,
    (part, body): (Body, &[u8]),
) -> io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\n{more}Content-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n\
         Referrer-Policy: no-referrer\r\n\r\n",
        body.len()
    )?;
    if part == Body::Sent {
        stream.write_all(body)?;
    }
    stream.flush()
}

/// Answers somebody whose request isn't read.
///
/// # Errors
/// What writing gives.
pub(crate) fn send_away(stream: &mut TcpStream, refusal: Refusal) -> io::Result<()> {
    stream.set_write_timeout(Some(LAST_PATIENCE))?;
    stream.set_read_timeout(Some(LAST_PATIENCE))?;
    refusal.answer(stream, Body::Sent)?;
    stream.shutdown(Shutdown::Write)?;
    // What nobody has read when a connection is closed takes the answer away with it.
    stream.read(&mut [0; 4096]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn who_is_sent_away_hears_it_whatever_was_said() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        send_away(&mut listener.accept().unwrap().0, Refusal::Unauthorized).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 401 "), "{text}");
    }
}
