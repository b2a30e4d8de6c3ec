//! What is asked of `grapnel view`: the page, or the data of a range.
//!
//! Anything on this machine can connect to a port of the loopback device, and any page in a browser can make that browser
//! connect. So a request is answered only if it has the secret in its path, and only by the name that was printed: a
//! page of another site that had its own name lead here would send that name along.

use crate::http::{MAX_HEADERS, Refusal, only_header};

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

/// Who is asked.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The port on the loopback device.
    pub(super) port: u16,
    /// The secret.
    pub(super) token: String,
}

/// What the head asks for; `None` if more of it is to come.
pub(super) fn parse(head: &[u8], place: &Place) -> Option<Result<Request, Refusal>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    if let Err(refusal) = crate::http::parse(&mut request, head)? {
        return Some(Err(refusal));
    }
    let host = only_header(&request, "host");
    let own = [format!("127.0.0.1:{}", place.port), format!("localhost:{}", place.port)];
    let is_own = host.is_some_and(|host| own.iter().any(|own| own.as_bytes().eq_ignore_ascii_case(host)));
    if !is_own {
        return Some(Err(Refusal::Host));
    }
    let target = request.path.unwrap_or_default();
    let rest = target.strip_prefix('/').and_then(|path| path.strip_prefix(place.token.as_str()));
    let request = match (request.method, rest.and_then(|rest| rest.strip_prefix('/'))) {
        (_, None) => Err(Refusal::NotFound),
        (Some("GET" | "HEAD"), Some("")) => Ok(Request::Page),
        (Some("GET" | "HEAD"), Some(rest)) => range(rest).ok_or(Refusal::NotFound),
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
