//! What is asked for, and by whom.

use crate::http::{self, MAX_HEADERS, Refusal, only_header};
use grapnel_analysis::export::pprof::GoProfile;
use std::net::SocketAddr;
use std::time::Duration;

/// The longest time that a difference may be over.
const MAX_SECONDS: u64 = 600;

/// Who may ask where.
#[derive(Debug)]
pub(super) struct Access {
    /// The address.
    pub(super) address: SocketAddr,
    /// What must be known.
    pub(super) token: Option<String>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// What there is.
    Index,
    /// Figures.
    Metrics,
    /// A profile.
    Profile(Wanted),
}

/// A profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Which.
    pub(super) profile: GoProfile,
    /// Of which process; of PROGRAM unless it is said.
    pub(super) pid: Option<u32>,
    /// The difference over so long.
    pub(super) over: Option<Duration>,
    /// As text.
    pub(super) text: bool,
}

/// What the head asks for; `None` if more of it is to come.
pub(super) fn parse(head: &[u8], access: &Access) -> Option<Result<Request, Refusal>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    if let Err(refusal) = http::parse(&mut request, head)? {
        return Some(Err(refusal));
    }
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let parameter = |name: &str| {
        let mut all = query.split('&').filter_map(|pair| pair.split_once('='));
        all.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let is_allowed = match &access.token {
        Some(token) => {
            let bearer =
                only_header(&request, "authorization").and_then(|value| value.strip_prefix(b"Bearer "));
            let given = bearer.or_else(|| parameter("token").map(str::as_bytes));
            given.is_some_and(|given| is_same(given, token.as_bytes()))
        }
        // A page of another site whose name leads here has a browser send that name along.
        None => match only_header(&request, "host") {
            Some(host) if is_own_name(host, access.address) => true,
            _ => return Some(Err(Refusal::Host)),
        },
    };
    Some(match (request.method, path) {
        _ if !is_allowed => Err(Refusal::Unauthorized),
        (Some("GET" | "HEAD"), "/") => Ok(Request::Index),
        (Some("GET" | "HEAD"), "/metrics") => Ok(Request::Metrics),
        (Some("GET" | "HEAD"), "/debug/pprof/heap") => wanted(GoProfile::Heap, parameter),
        (Some("GET" | "HEAD"), "/debug/pprof/allocs") => wanted(GoProfile::Allocs, parameter),
        (Some("GET" | "HEAD"), _) => Err(Refusal::NotFound),
        _ => Err(Refusal::Method),
    })
}

/// `gc` has no meaning here, and is ignored. `debug` asks for text; of Go's heap profiles there is but one form of it.
fn wanted<'q>(
    profile: GoProfile,
    parameter: impl Fn(&'static str) -> Option<&'q str>,
) -> Result<Request, Refusal> {
    let number =
        |name| parameter(name).map(|text| text.parse::<u64>().map_err(|_| Refusal::Malformed)).transpose();
    let text = number("debug")?.is_some_and(|debug| debug != 0);
    let seconds = number("seconds")?.filter(|&seconds| seconds != 0);
    if seconds.is_some_and(|seconds| seconds > MAX_SECONDS) {
        return Err(Refusal::Malformed);
    }
    let pid = number("pid")?.map(|pid| u32::try_from(pid).map_err(|_| Refusal::NotFound)).transpose()?;
    Ok(Request::Profile(Wanted { profile, pid, over: seconds.map(Duration::from_secs), text }))
}

fn is_own_name(host: &[u8], address: SocketAddr) -> bool {
    let names = [address.to_string(), format!("localhost:{}", address.port())];
    // Clients leave out the port that is HTTP's own.
    let without =
        |name: &str| name.strip_suffix(":80").is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(host));
    names.iter().any(|name| name.as_bytes().eq_ignore_ascii_case(host) || without(name))
}

/// Takes as long wherever the first difference is.
fn is_same(given: &[u8], token: &[u8]) -> bool {
    let difference = given.iter().zip(token).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == token.len() && std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &str, token: Option<&str>) -> Result<Request, Refusal> {
        let access = Access { address: ([127, 0, 0, 1], 4711).into(), token: token.map(Into::into) };
        parse(head.as_bytes(), &access).unwrap()
    }

    #[test]
    fn profiles_are_asked_for_as_of_go() {
        let get = |path: &str| parsed(&format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:4711\r\n\r\n"), None);
        let heap = Wanted { profile: GoProfile::Heap, pid: None, over: None, text: false };
        assert_eq!(get("/debug/pprof/heap"), Ok(Request::Profile(heap)));
        assert_eq!(get("/debug/pprof/heap?gc=1&seconds=0&debug=0"), Ok(Request::Profile(heap)));
        let text = Wanted { text: true, ..heap };
        assert_eq!(get("/debug/pprof/heap?debug=1"), Ok(Request::Profile(text)));
        let allocs = Wanted {
            profile: GoProfile::Allocs,
            pid: Some(7),
            over: Some(Duration::from_secs(5)),
            text: false,
        };
        assert_eq!(get("/debug/pprof/allocs?seconds=5&pid=7"), Ok(Request::Profile(allocs)));
        assert_eq!(get("/metrics"), Ok(Request::Metrics));
        let head = parsed("HEAD /metrics HTTP/1.1\r\nHost: 127.0.0.1:4711\r\n\r\n", None);
        assert_eq!(head, Ok(Request::Metrics));
        for path in ["/debug/pprof/profile", "/metrics/", "/debug/pprof/heap?pid=5000000000"] {
            assert_eq!(get(path), Err(Refusal::NotFound), "{path}");
        }
        for path in
            ["/debug/pprof/heap?seconds=x", "/debug/pprof/heap?seconds=1000000", "/debug/pprof/heap?pid=-1"]
        {
            assert_eq!(get(path), Err(Refusal::Malformed), "{path}");
        }
    }

    #[test]
    fn who_has_neither_the_name_nor_the_token_is_refused() {
        let ask = |lines: &str, token| parsed(&format!("GET {lines}\r\n\r\n"), token);
        assert_eq!(ask("/metrics HTTP/1.1\r\nHost: localhost:4711", None), Ok(Request::Metrics));
        for host in
            ["Host: evil.example", "Host: 127.0.0.1", "X: y", "Host: localhost:4711\r\nHost: localhost:4711"]
        {
            assert_eq!(ask(&format!("/metrics HTTP/1.1\r\n{host}"), None), Err(Refusal::Host), "{host}");
        }
        let token = Some("secret");
        let usual = |host: &[u8]| is_own_name(host, ([127, 0, 0, 1], 80).into());
        assert!(usual(b"localhost") && usual(b"127.0.0.1") && usual(b"127.0.0.1:80") && !usual(b"127.0.0"));
        assert_eq!(ask("/metrics?token=secret HTTP/1.1", token), Ok(Request::Metrics));
        assert_eq!(ask("/metrics HTTP/1.1\r\nAuthorization: Bearer secret", token), Ok(Request::Metrics));
        for given in
            ["X: y", "Authorization: Bearer secre", "Authorization: Bearer secrets", "Authorization: secret"]
        {
            assert_eq!(
                ask(&format!("/metrics HTTP/1.1\r\n{given}"), token),
                Err(Refusal::Unauthorized),
                "{given}"
            );
        }
        assert_eq!(
            parsed("POST /metrics HTTP/1.1\r\nHost: localhost:4711\r\n\r\n", None),
            Err(Refusal::Method)
        );
    }
}
