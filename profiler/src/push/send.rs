//! A request, its answer, and when the next one may follow.
//!
//! What a moment may mend (nobody is there, too many requests, an engine that starts) is sent again, later each time, or when
//! the engine says. Everything else is a profile that isn't taken. Redirects aren't followed: the token is for one host.

use super::body::Body;
use super::target::{Engine, Target};
use grapnel_analysis::export::pushed::otlp_rejected;
use grapnel_analysis::report::words::harmless;
use grapnel_analysis::symbols::system_roots;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use std::io;
use std::time::{Duration, Instant, SystemTime};
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Error};

/// For a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// For a request and its whole answer.
const WHOLE: Duration = Duration::from_secs(10);
/// The longest answer that is read: OTLP recommends this.
const MAX_ANSWER: u64 = 4 << 20;
/// How long to wait after the first failure, and at most. It doubles in between.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// The longest time that an engine's word is taken for.
const MAX_DEMAND: Duration = Duration::from_secs(3600);
/// So much of an engine's own words is told.
const MAX_WORDS: usize = 200;

/// Sends to one engine, one request after the other.
#[derive(Debug)]
pub(super) struct Sender {
    target: Target,
    token: Option<String>,
    agent: Agent,
    /// The next request is sent then.
    not_before: Option<Instant>,
    /// The engine asked for that.
    is_demanded: bool,
    pause: Duration,
    /// Why the last request failed.
    reason: String,
}

/// Why a request failed.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    reason: String,
    again: Again,
}

/// Whether a request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Never,
    Later,
    /// As the engine asks.
    After(Duration),
}

impl Sender {
    pub(super) fn new(target: Target, token: Option<String>) -> Self {
        let secure = target.endpoint.scheme_str() == Some("https");
        let roots = if secure { system_roots() } else { RootCerts::WebPki };
        let config = Agent::config_builder();
        // Nobody is between here and here.
        let config = if target.is_here() { config.proxy(None) } else { config };
        let agent = config
            .user_agent(concat!("grapnel/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build()
            .new_agent();
        let (not_before, is_demanded, pause, reason) = (None, false, PAUSES[0], String::new());
        Self { target, token, agent, not_before, is_demanded, pause, reason }
    }

    pub(super) fn engine(&self) -> Engine {
        self.target.engine
    }

    /// The last profiles are sent now or never, unless the engine doesn't want them.
    pub(super) fn be_quick(&mut self) {
        if !self.is_demanded {
            self.not_before = None;
        }
    }

    /// Sends a profile, again if need be, until a time. `nap` waits, and says whether it is worth to go on.
    ///
    /// # Errors
    /// Why the engine doesn't have it.
    pub(super) fn send(
        &mut self,
        body: &Body,
        until: Instant,
        mut nap: impl FnMut(Duration) -> bool,
    ) -> Result<(), String> {
        loop {
            if let Some(at) = self.not_before {
                if at > until || !nap(at.saturating_duration_since(Instant::now())) {
                    return Err(self.reason.clone());
                }
                self.not_before = None;
            }
            let Err(failure) = self.attempt(body) else {
                self.pause = PAUSES[0];
                return Ok(());
            };
            self.reason = failure.reason;
            let (pause, is_demanded) = match failure.again {
                Again::Never => return Err(self.reason.clone()),
                Again::After(time) => (time.min(MAX_DEMAND), true),
                Again::Later => {
                    // Not all at once, when an engine comes back that many wait for.
                    let pause = self.pause.mul_f64(0.75 + fastrand::f64() / 2.0);
                    self.pause = (self.pause * 2).min(PAUSES[1]);
                    (pause, false)
                }
            };
            self.not_before = Some(Instant::now() + pause);
            self.is_demanded = is_demanded;
        }
    }

    fn attempt(&self, body: &Body) -> Result<(), Failure> {
        let mut request = self.agent.post(&self.target.endpoint).header("Content-Type", body.kind);
        if body.compressed {
            request = request.header("Content-Encoding", "gzip");
        }
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let request = request.config().timeout_global(Some(WHOLE)).build();
        let mut response = request.send(&body.bytes[..]).map_err(|error| unsent(&error))?;
        let answer = response.body_mut().with_config().limit(MAX_ANSWER).read_to_vec();
        judge(self.target.engine, &response, answer)
    }
}

/// What a request that had no answer came to.
fn unsent(error: &Error) -> Failure {
    let again = match error {
        // Certificates that nobody vouches for, and what is no TLS.
        Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => Again::Never,
        Error::Io(_) | Error::Timeout(_) | Error::HostNotFound | Error::ConnectionFailed => Again::Later,
        _ => Again::Never,
    };
    Failure { reason: words(&error.to_string()), again }
}

/// What an answer comes to.
fn judge<T>(engine: Engine, response: &Response<T>, answer: Result<Vec<u8>, Error>) -> Result<(), Failure> {
    let status = response.status();
    let said = |answer: &[u8]| match std::str::from_utf8(answer) {
        Ok(text) if !text.trim().is_empty() => format!(": {}", words(text.trim())),
        _ => String::new(),
    };
    let never = |reason| Err(Failure { reason, again: Again::Never });
    let answer = match answer {
        Err(Error::BodyExceedsLimit(_)) => return never("its answer is too long".into()),
        Err(_) if status.is_success() => return Ok(()),
        answer => answer.unwrap_or_default(),
    };
    if status.is_success() {
        return match otlp_rejected(&answer).filter(|_| engine == Engine::Otlp) {
            Some((rejected, why)) => {
                never(format!("it did not take {rejected} of the profiles: {}", words(&why)))
            }
            None => Ok(()),
        };
    }
    let reason = format!("it answered {}{}", status, said(&answer));
    if status.is_redirection() {
        return never(format!("{reason} (redirects aren't followed; give the address that it leads to)"));
    }
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        return never(format!("{reason} (--push-token-file gives it a token)"));
    }
    let again = match status.as_u16() {
        408 | 429 | 502 | 503 | 504 => demanded(response.headers()).map_or(Again::Later, Again::After),
        _ => Again::Never,
    };
    Err(Failure { reason, again })
}

/// How long the engine wants to be left alone: seconds, or a date (RFC 9110).
fn demanded(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("Retry-After")?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = rfc2822::parse(text).ok()?.timestamp();
    let left = date.duration_since(Timestamp::try_from(SystemTime::now()).ok()?);
    Some(Duration::try_from(left).unwrap_or_default())
}

/// Others' words, as they can stand in a message.
fn words(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    harmless(&line.chars().take(MAX_WORDS).collect::<String>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(engine: Engine, status: u16, headers: &[(&str, &str)], body: &[u8]) -> Result<(), Failure> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        judge(engine, &response.body(()).unwrap(), Ok(body.to_vec()))
    }

    #[test]
    fn what_a_moment_may_mend_is_sent_again() {
        let again = |status, headers: &[(&str, &str)]| {
            judged(Engine::Parca, status, headers, b"").map_err(|f| f.again)
        };
        assert_eq!(again(200, &[]), Ok(()));
        assert_eq!(again(204, &[]), Ok(()));
        for status in [408, 429, 502, 503, 504] {
            assert_eq!(again(status, &[]), Err(Again::Later), "{status}");
            let asked = again(status, &[("Retry-After", "7")]);
            assert_eq!(asked, Err(Again::After(Duration::from_secs(7))), "{status}");
        }
        for status in [301, 307, 400, 401, 403, 404, 413, 500] {
            assert_eq!(again(status, &[("Retry-After", "7")]), Err(Again::Never), "{status}");
        }
        assert_eq!(again(503, &[("Retry-After", "soon")]), Err(Again::Later));
        // A date that is over.
        let past = [("Retry-After", "Sun, 06 Nov 1994 08:49:37 GMT")];
        assert_eq!(again(503, &past), Err(Again::After(Duration::ZERO)));
        let future = [("Retry-After", "Sat, 06 Nov 2393 08:49:37 GMT")];
        assert!(matches!(again(503, &future), Err(Again::After(time)) if time > MAX_DEMAND));
        let lost = unsent(&Error::Io(io::ErrorKind::ConnectionRefused.into()));
        assert_eq!(lost.again, Again::Later);
        let unknown = unsent(&Error::Io(io::Error::new(io::ErrorKind::InvalidData, "UnknownIssuer")));
        assert_eq!(unknown.again, Again::Never);
        assert_eq!(unsent(&Error::Tls("no certificate")).again, Again::Never);
    }

    #[test]
    fn an_engines_words_are_told_in_one_short_line() {
        let reason = |body: &[u8]| judged(Engine::Pyroscope, 400, &[], body).unwrap_err().reason;
        assert_eq!(reason(b"no\x1b[2J such\nthing"), "it answered 400 Bad Request: no\\u{1b}[2J such");
        assert_eq!(reason(&[0xff, 0xfe]), "it answered 400 Bad Request");
        assert!(reason(&[b'x'; 100_000]).len() < 300);
        let partly = judged(Engine::Otlp, 200, &[], b"\x0a\x06\x08\x02\x12\x02no").unwrap_err();
        assert_eq!(partly.reason, "it did not take 2 of the profiles: no");
        // A warning is none.
        assert_eq!(judged(Engine::Otlp, 200, &[], b"\x0a\x04\x12\x02hm"), Ok(()));
        assert_eq!(judged(Engine::Otlp, 200, &[], b"<html>"), Ok(()));
    }
}
