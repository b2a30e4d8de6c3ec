//! `--serve` of `grapnel run` and `grapnel attach`: what a recording has so far, over HTTP, in the forms that others collect.
//!
//! | path | what |
//! |---|---|
//! | `/debug/pprof/heap`, `/debug/pprof/allocs` | profiles as Go's are, for `go tool pprof` and all that scrapes them; `seconds=N` gives the difference over so long; `pid=N` chooses a process |
//! | `/metrics` | Prometheus's text format: the figures of each process |
//!
//! Everything is asked of the drain through the same desk as other requests (`crate::control`); it gives figures, or says
//! where the trace ends. Traces are read and names are looked up in a thread of this module, which costs the recording
//! nothing but what the processor has to share.

mod metrics;
mod peer;
mod profiles;
mod request;

use crate::control::{Desk, Reply, Request as Order};
use crate::http::{self, Refusal, Unheard};
use crate::secret::{SecretError, token_of};
use clap::Args;
use profiles::Profiles;
use request::{Access, Request};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;

/// Shorter tokens can be guessed.
const MIN_TOKEN: usize = 16;

/// Options of what is served.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Serve profiles (/debug/pprof/heap, /debug/pprof/allocs) and figures (/metrics) over HTTP at this address
    ///
    /// A port alone is one of 127.0.0.1. Without --serve-token only this user and root are answered there; any other
    /// address needs a token.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    serve: Option<SocketAddr>,
    /// The file with the token that clients must have, as `Authorization: Bearer TOKEN` or `?token=TOKEN`
    #[arg(long, value_name = "FILE", requires = "serve")]
    serve_token: Option<PathBuf>,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ServeError {
    /// The address can't be had.
    #[error("--serve {address}: {error}; give another address, or port 0 for one that is free")]
    Listen { address: SocketAddr, error: io::Error },
    /// Others could read what a program does.
    #[error(
        "--serve {0}: others can reach this address; give the token that they must have by --serve-token FILE"
    )]
    NoToken(SocketAddr),
    /// There is no token.
    #[error(transparent)]
    Token(#[from] SecretError),
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let text = match text.strip_prefix(':').unwrap_or(text) {
        port if port.parse::<u16>().is_ok() => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    let mut found = text.to_socket_addrs().map_err(|error| format!("{error}; it is PORT or HOST:PORT"))?;
    found.next().ok_or_else(|| "the host has no address".to_owned())
}

/// What is about to be served.
#[derive(Debug)]
pub(crate) struct Listening {
    listener: TcpListener,
    access: Access,
}

impl ServeArgs {
    /// Whether anything is served.
    pub(crate) fn is_wanted(&self) -> bool {
        self.serve.is_some()
    }

    /// Takes the address. Before the program is started: a mistake is said at once.
    ///
    /// # Errors
    /// When it can't be had, or would need a token.
    pub(crate) fn listen(&self) -> Result<Option<Listening>, ServeError> {
        let Some(address) = self.serve else { return Ok(None) };
        let token = self.serve_token.as_deref();
        let token = token.map(|path| token_of("--serve-token", path, MIN_TOKEN)).transpose()?;
        if token.is_none() && !address.ip().is_loopback() {
            return Err(ServeError::NoToken(address));
        }
        let failed = |error| ServeError::Listen { address, error };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Some(Listening { listener, access: Access { address, token } }))
    }
}

impl Listening {
    /// Where.
    pub(crate) fn address(&self) -> SocketAddr {
        self.access.address
    }

    /// Serves from here on, in threads that end with this process.
    pub(crate) fn start(self, desk: &Arc<Desk>) {
        let profiles = Profiles::start(desk);
        let (desk, access) = (Arc::clone(desk), Arc::new(self.access));
        let listener = self.listener;
        let handle = move |mut stream: TcpStream, unheard: &Unheard| {
            drop(handle(&mut stream, unheard, &access, &desk, &profiles));
        };
        let work = move || drop(http::listen(&listener, handle));
        // Without the thread nothing is served, and the recording goes on.
        drop(std::thread::Builder::new().name("serve".into()).spawn(work));
    }
}

fn handle(
    stream: &mut TcpStream,
    unheard: &Unheard,
    access: &Access,
    desk: &Desk,
    profiles: &Profiles,
) -> io::Result<()> {
    // The loopback device is open to every user of this machine. Others are sent away before they are listened to, lest
    // they keep all places taken by saying nothing.
    if access.token.is_none() && !peer::is_allowed(stream) {
        return http::send_away(stream, Refusal::Unauthorized);
    }
    let (request, part) = match http::read(stream, unheard, |head| request::parse(head, access))? {
        (Ok(request), part) => (request, part),
        (Err(refusal), part) => return refusal.answer(stream, part),
    };
    let text = "text/plain; charset=utf-8";
    let answered = match request {
        Request::Index => return http::answer(stream, "200 OK", text, (part, INDEX)),
        Request::Metrics => match desk.ask(Order::Status {}) {
            Ok(Reply::Status(status)) => Ok((metrics::KIND, metrics::of(&status).into_bytes())),
            Ok(_) => Err("the recording answered something else".to_owned()),
            Err(refusal) => Err(refusal.to_string()),
        },
        Request::Profile(wanted) => profiles
            .get(wanted)
            .map(|profile| (if wanted.text { text } else { "application/octet-stream" }, profile))
            .map_err(|error| error.to_string()),
    };
    match answered {
        Ok((kind, body)) => http::answer(stream, "200 OK", kind, (part, &body)),
        Err(error) => http::answer(stream, "503 Service Unavailable", text, (part, error.as_bytes())),
    }
}

const INDEX: &[u8] = b"grapnel\n\n\
/debug/pprof/heap      what is live (seconds=N: the difference over N seconds, pid=N: another process,\n\
                       debug=1: as text)\n\
/debug/pprof/allocs    what was ever allocated\n\
/metrics               figures for Prometheus\n";
