//! `grapnel view`: the page of a trace with the trace behind it, for ranges that a page can't hold.

mod request;

use crate::http::{self, Body, MAX_CONNECTIONS};
use crate::opened::{OpenError, history_of, say, text_of};
use crate::symbols::{SymbolArgs, SymbolArgsError};
use clap::Args;
use grapnel_analysis::history::Window;
use grapnel_analysis::page;
use grapnel_analysis::symbols::{FileStore, Symbols};
use request::{Place, Request};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};

/// Options of `grapnel view`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ViewArgs {
    /// The trace to look at.
    trace: PathBuf,
    /// The port on 127.0.0.1 [default: one that is free].
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Open the page in the browser that `xdg-open` starts.
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    symbols: SymbolArgs,
}

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ViewError {
    /// The trace can't be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is nowhere to look for symbols.
    #[error(transparent)]
    Symbols(#[from] SymbolArgsError),
    /// The port can't be had.
    #[error("port {port} of 127.0.0.1: {error}; give another by --port, or none")]
    Listen {
        /// The port that was asked for.
        port: u16,
        /// Why not.
        error: io::Error,
    },
    /// There is no secret to be had.
    #[error("/dev/urandom: {0}; without random bytes there is no address that others can't guess")]
    Random(io::Error),
    /// The page can't be made.
    #[error("the page can't be made: {0}")]
    Page(io::Error),
    /// Nobody can be told the address.
    #[error("the address can't be written: {0}")]
    Say(io::Error),
    /// Nobody can connect any more.
    #[error("no connection can be taken any more: {0}")]
    Accept(io::Error),
}

/// Serves the page until it is interrupted.
///
/// # Errors
/// When the trace can't be read at all, or the page can't be served.
pub(crate) fn run(args: &ViewArgs) -> Result<ExitCode, ViewError> {
    let search = args.symbols.search()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port))
        .map_err(|error| ViewError::Listen { port: args.port, error })?;
    let port = listener.local_addr().map_err(|error| ViewError::Listen { port: args.port, error })?.port();
    let place = Place { port, token: token().map_err(ViewError::Random)? };
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, search);
    let mut whole = Vec::new();
    {
        let (analysis, history) = history_of(&args.trace, Window::ALL)?;
        page::write_live(&mut whole, &analysis, &history, &mut symbols).map_err(ViewError::Page)?;
    }
    let address = format!("http://127.0.0.1:{port}/{}/", place.token);
    let mut out = io::stdout().lock();
    writeln!(out, "{address}").and_then(|()| out.flush()).map_err(ViewError::Say)?;
    drop(out);
    say("serving until it is interrupted (Ctrl-C); whoever has the address can read the report");
    if args.open {
        open(&address);
    }
    let (send, receive) = sync_channel(MAX_CONNECTIONS);
    let listening = std::thread::spawn(move || listen(&listener, place, send));
    // Symbols are looked up here, one request after the other.
    for (mut stream, request, part) in receive {
        let result = match request {
            Request::Page => http::answer(&mut stream, "200 OK", "text/html; charset=utf-8", (part, &whole)),
            Request::Data { from, to } => match data(&args.trace, Window { from, to }, &mut symbols) {
                Ok(data) => http::answer(&mut stream, "200 OK", "application/octet-stream", (part, &data)),
                Err(error) => {
                    let text = error.to_string();
                    let kind = "text/plain; charset=utf-8";
                    http::answer(&mut stream, "500 Internal Server Error", kind, (part, text.as_bytes()))
                }
            },
        };
        // Who went away meanwhile wants no answer.
        drop(result);
    }
    match listening.join() {
        Ok(error) => Err(ViewError::Accept(error)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// What a page shows of a range. The trace is read again: it may have grown, and a range needs buckets of its own.
fn data(trace: &Path, window: Window, symbols: &mut Symbols<'_>) -> Result<Vec<u8>, ViewError> {
    let (analysis, history) = history_of(trace, window)?;
    page::data(&analysis, &history, symbols, page::Limits::LIVE).map_err(ViewError::Page)
}

/// 128 random bits as text.
fn token() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a string never fails.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// Takes connections until that fails, and passes on what is asked.
fn listen(listener: &TcpListener, place: Place, send: SyncSender<(TcpStream, Request, Body)>) -> io::Error {
    http::listen(listener, move |mut stream, unheard| {
        match http::read(&mut stream, unheard, |head| request::parse(head, &place)) {
            Ok((Ok(request), part)) => drop(send.send((stream, request, part))),
            Ok((Err(refusal), part)) => drop(refusal.answer(&mut stream, part)),
            // Nobody is there.
            Err(_) => {}
        }
    })
}

/// Opens the address in a browser. If there is none, it can still be opened by hand.
fn open(address: &str) {
    let started = Command::new("xdg-open")
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = started {
        say(&format!("xdg-open: {}; open the address by hand", text_of(Path::new(&error.to_string()))));
    }
}
