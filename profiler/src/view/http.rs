//! As much of HTTP as one page and its data need: a request's head, read within bounds, and an answer.
//!
//! Anything on this machine can connect to a port of the loopback device, and any page in a browser can make that browser
//! connect. So a request is answered only if it has the secret in its path, and only by the name that was printed: a
//! page of another site that had its own name lead here would send that name along.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The longest head of a request that is read.
const MAX_HEAD: usize = 16 << 10;
/// The most headers that it may have.
const MAX_HEADERS: usize = 64;
/// How long the whole head may take, and how long nothing of an answer may be taken.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The page.
    Page,
    /// The data of a range: from one change of the live set up to another.
    Data {
        /// The first change.
        from: u64,
        /// The first one behind it.
        to: u64,
    },
}

/// Why there is another answer than what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is no request.
    Malformed,
    /// It is for another host.
    Host,
    /// It wants more than to read.
    Method,
    /// There is no such thing, or the secret is wrong.
    NotFound,
    /// Its head doesn't end.
    TooLong,
}

impl Refusal {
    /// The status, and what it means.
    pub(super) fn status(self) -> &'static str {
        match self {
            Self::Malformed => "400 Bad Request",
            Self::Host => "421 Misdirected Request",
            Self::Method => "405 Method Not Allowed",
            Self::NotFound => "404 Not Found",
            Self::TooLong => "431 Request Header Fields Too Large",
        }
    }
}

/// Who is asked.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The port on the loopback device.
    pub(super) port: u16,
    /// The secret.
    pub(super) token: String,
}

/// Reads a request.
///
/// # Errors
/// When nobody is there any more, or takes too long.
pub(super) fn read(stream: &mut TcpStream, place: &Place) -> io::Result<Result<Request, Refusal>> {
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
        if let Some(answer) = parse(&head, place) {
            return Ok(answer);
        }
        if head.len() > MAX_HEAD {
            return Ok(Err(Refusal::TooLong));
        }
    }
}

/// What the head asks for; `None` if more of it is to come.
fn parse(head: &[u8], place: &Place) -> Option<Result<Request, Refusal>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(status) if status.is_partial() => return None,
        Ok(_) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(Err(Refusal::TooLong)),
        Err(_) => return Some(Err(Refusal::Malformed)),
    }
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let host = hosts.next().map(|header| header.value);
    let own = [format!("127.0.0.1:{}", place.port), format!("localhost:{}", place.port)];
    let is_own = host.is_some_and(|host| own.iter().any(|own| own.as_bytes().eq_ignore_ascii_case(host)));
    if !is_own || hosts.next().is_some() {
        return Some(Err(Refusal::Host));
    }
    let target = request.path.unwrap_or_default();
    let rest = target.strip_prefix('/').and_then(|path| path.strip_prefix(place.token.as_str()));
    let request = match (request.method, rest.and_then(|rest| rest.strip_prefix('/'))) {
        (_, None) => Err(Refusal::NotFound),
        (Some("GET"), Some("")) => Ok(Request::Page),
        (Some("GET"), Some(rest)) => range(rest).ok_or(Refusal::NotFound),
        _ => Err(Refusal::Method),
    };
    Some(request)
}

/// `data?from=1&to=2`
fn range(text: &str) -> Option<Request> {
    let (from, to) = text.strip_prefix("data?from=")?.split_once("&to=")?;
    let (from, to) = (from.parse().ok()?, to.parse().ok()?);
    (from < to).then_some(Request::Data { from, to })
}

/// Answers, and ends the connection.
///
/// # Errors
/// What writing gives.
pub(super) fn answer(stream: &mut TcpStream, status: &str, kind: &str, body: &[u8]) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &str) -> Option<Result<Request, Refusal>> {
        parse(head.as_bytes(), &Place { port: 4711, token: "secret".into() })
    }

    #[test]
    fn only_who_knows_the_secret_and_the_name_is_answered() {
        let get =
            |path: &str, host: &str| parsed(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
        let own = "127.0.0.1:4711";
        assert_eq!(get("/secret/", own), Ok(Request::Page));
        assert_eq!(get("/secret/", "LOCALHOST:4711"), Ok(Request::Page));
        assert_eq!(get("/secret/data?from=3&to=9", own), Ok(Request::Data { from: 3, to: 9 }));
        for host in ["evil.example:4711", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:4711.evil.example", ""] {
            assert_eq!(get("/secret/", host), Err(Refusal::Host), "{host}");
        }
        for path in [
            "/",
            "/secret",
            "/secre/",
            "/secrets/",
            "//secret/",
            "/secret/x",
            "/secret/../",
            "/secret/data?from=9&to=3",
            "/secret/data?from=1&to=99999999999999999999",
            "/secret/data?from=1&to=2&x=3",
        ] {
            assert_eq!(get(path, own), Err(Refusal::NotFound), "{path}");
        }
    }

    #[test]
    fn odd_requests_are_refused() {
        assert_eq!(parsed("GET /secret/ HTTP/1.1\r\nHost: 127.0.0.1:4711\r\n"), None);
        assert_eq!(parsed("GET /secret/ HTTP/1.1\r\n\r\n"), Some(Err(Refusal::Host)));
        let twice = "GET /secret/ HTTP/1.1\r\nHost: 127.0.0.1:4711\r\nHost: evil.example\r\n\r\n";
        assert_eq!(parsed(twice), Some(Err(Refusal::Host)));
        assert_eq!(
            parsed("POST /secret/ HTTP/1.1\r\nHost: 127.0.0.1:4711\r\n\r\n"),
            Some(Err(Refusal::Method))
        );
        assert_eq!(parsed("\0\0\0\0 nonsense\r\n\r\n"), Some(Err(Refusal::Malformed)));
        let many = "X: y\r\n".repeat(100);
        assert_eq!(parsed(&format!("GET /secret/ HTTP/1.1\r\n{many}\r\n")), Some(Err(Refusal::TooLong)));
    }
}
