//! Debug files from servers that speak debuginfod's protocol: `GET URL/buildid/HEX/debuginfo` or `.../executable`.
//!
//! A server learns the build ids that are asked for, and nothing else of a trace. What it sends is a file like any other:
//! used only if its build id is the right one. Time, size and the number of questions are bounded. Files are kept, as
//! `HEX/debuginfo` and `HEX/executable`; those that elfutils' client keeps lie likewise, and can be searched as a directory
//! with debug files.

use super::files::hex;
use rustls_native_certs::load_native_certs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// More servers than anybody asks in turn.
const MAX_SERVERS: usize = 16;
/// A server that failed so often isn't asked again.
const MAX_FAILURES: u32 = 2;
/// Of one run: more than the modules of any process.
const MAX_QUESTIONS: u32 = 4096;
/// A build id has 20 bytes, and a hash of any kind at most 64.
const MAX_BUILD_ID: usize = 64;

/// Why no server can be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DebuginfodError {
    /// No server was named.
    #[error("no debuginfod server is named; give one, or set DEBUGINFOD_URLS")]
    NoServer,
    /// More servers than are asked.
    #[error("{count} debuginfod servers are named; at most {MAX_SERVERS} are asked")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// What was named is no address of a server.
    #[error("{url} is no address of a debuginfod server; give one that begins with https:// or http://")]
    Url {
        /// What was given.
        url: String,
    },
}

/// How long a server may take, and how much it may send.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// For a connection, for the beginning of an answer, and between two pieces of a file.
    pub pause: Duration,
    /// For a whole file.
    pub whole: Duration,
    /// Bytes of a file.
    pub size: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { pause: Duration::from_secs(30), whole: Duration::from_secs(30 * 60), size: 8 << 30 }
    }
}

/// Which file of a build is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    DebugInfo,
    Executable,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DebugInfo => "debuginfo",
            Self::Executable => "executable",
        }
    }
}

/// Servers, asked in turn, and where what they send is kept.
#[derive(Clone, Debug)]
pub struct Debuginfod {
    servers: Arc<[Server]>,
    questions: Arc<AtomicU32>,
    agent: ureq::Agent,
    limits: Limits,
    cache: PathBuf,
    announce: fn(&str),
}

#[derive(Debug)]
struct Server {
    url: String,
    failures: AtomicU32,
}

impl Debuginfod {
    /// Servers by their addresses, as in `DEBUGINFOD_URLS`, in this order. What they send is kept in `cache`, which is made
    /// when it is needed. `announce` is told of each file that is fetched, before it is.
    ///
    /// # Errors
    /// When there is none, or one that is no address.
    pub fn new(
        urls: &str,
        cache: PathBuf,
        limits: Limits,
        announce: fn(&str),
    ) -> Result<Self, DebuginfodError> {
        let mut servers = Vec::new();
        for url in urls.split_whitespace() {
            let parsed = url.parse::<ureq::http::Uri>().ok();
            let named = parsed.filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
            if !named.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https"))) {
                return Err(DebuginfodError::Url { url: url.to_owned() });
            }
            servers.push(Server { url: url.trim_end_matches('/').to_owned(), failures: AtomicU32::new(0) });
        }
        match servers.len() {
            0 => return Err(DebuginfodError::NoServer),
            1..=MAX_SERVERS => {}
            count => return Err(DebuginfodError::TooMany { count }),
        }
        let secure = servers.iter().any(|server| server.url.starts_with("https"));
        let roots = if secure { system_roots() } else { RootCerts::WebPki };
        let agent = ureq::Agent::config_builder()
            .user_agent(concat!("grapnel/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(5)
            .timeout_connect(Some(limits.pause))
            .timeout_recv_response(Some(limits.pause))
            .timeout_per_read(Some(limits.pause))
            .timeout_per_call(Some(limits.whole))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build()
            .new_agent();
        let servers = servers.into();
        Ok(Self { servers, questions: Arc::default(), agent, limits, cache, announce })
    }

    /// A file of a build, as it was fetched now or before. `None` if no server has it.
    ///
    /// # Errors
    /// A sentence, when nobody has it and a server could not be asked or a file could not be kept.
    pub(crate) fn fetch(&self, build_id: &[u8], kind: Kind) -> Result<Option<PathBuf>, String> {
        if build_id.is_empty() || build_id.len() > MAX_BUILD_ID {
            return Ok(None);
        }
        let path = self.cache.join(hex(build_id)).join(kind.name());
        if path.is_file() {
            return Ok(Some(path));
        }
        let mut failed = None;
        for server in self.servers.iter() {
            if server.failures.load(Ordering::Relaxed) >= MAX_FAILURES {
                continue;
            }
            if self.questions.fetch_add(1, Ordering::Relaxed) >= MAX_QUESTIONS {
                return Err(format!("debuginfod servers aren't asked more than {MAX_QUESTIONS} times"));
            }
            match self.ask(server, build_id, kind, &path) {
                Ok(true) => return Ok(Some(path)),
                Ok(false) => {}
                Err(error) => {
                    server.failures.fetch_add(1, Ordering::Relaxed);
                    failed = Some(format!("{} gave no debug file: {error}", server.url));
                }
            }
        }
        failed.map_or(Ok(None), Err)
    }

    fn ask(&self, server: &Server, build_id: &[u8], kind: Kind, path: &Path) -> Result<bool, String> {
        let url = format!("{}/buildid/{}/{}", server.url, hex(build_id), kind.name());
        let start = Instant::now();
        let response = self.agent.get(&url).call().map_err(|error| error.to_string())?;
        match response.status().as_u16() {
            200 => {}
            404 => return Ok(false),
            status => return Err(format!("it answered with status {status}")),
        }
        let len = response.body().content_length();
        if len.is_some_and(|len| len > self.limits.size) {
            return Err(too_large(self.limits.size));
        }
        let size = len.map_or(String::new(), |len| format!(" ({:.1} MB)", len as f64 / 1e6));
        (self.announce)(&format!("fetching {} of {}{size} from {}", kind.name(), hex(build_id), server.url));
        let body = response.into_body().into_with_config().limit(u64::MAX).reader();
        self.keep(body, len, start, path)?;
        Ok(true)
    }

    /// Writes a file whole or not at all.
    fn keep(&self, mut body: impl Read, len: Option<u64>, start: Instant, path: &Path) -> Result<(), String> {
        let unkept = |error: io::Error| format!("it can't be kept at {}: {error}", path.display());
        let dir = path.parent().unwrap_or(&self.cache);
        std::fs::create_dir_all(dir).map_err(unkept)?;
        let mut file = tempfile::NamedTempFile::new_in(dir).map_err(unkept)?;
        let mut buffer = vec![0; 1 << 16];
        let mut written = 0;
        loop {
            let read = body.read(&mut buffer).map_err(|error| error.to_string())?;
            if read == 0 {
                break;
            }
            written += read as u64;
            if written > self.limits.size {
                return Err(too_large(self.limits.size));
            }
            if start.elapsed() > self.limits.whole {
                return Err(format!("it took longer than {} s", self.limits.whole.as_secs()));
            }
            file.write_all(&buffer[..read]).map_err(unkept)?;
        }
        if len.is_some_and(|len| len != written) {
            return Err(format!("it sent {written} bytes, fewer than it said"));
        }
        file.persist(path).map_err(|error| unkept(error.error))?;
        Ok(())
    }
}

fn too_large(size: u64) -> String {
    format!("the file is larger than {size} bytes")
}

/// Whom this machine trusts, which may be a company's own authority; where it says nothing, Mozilla's list.
pub fn system_roots() -> RootCerts {
    let found = load_native_certs().certs;
    if found.is_empty() {
        return RootCerts::WebPki;
    }
    let certificates: Vec<_> = found.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    RootCerts::new_with_certs(&certificates)
}
