//! A trace that is read as it grows.

use grapnel_analysis::Analysis;
use grapnel_analysis::export::pushed::Known;
use grapnel_analysis::following::{Following, Step};
use grapnel_trace::growing::Growing;
use grapnel_trace::reader::Reader;
use std::fs::File;
use std::io::Seek;
use std::time::SystemTime;

/// The longest name of a command that is told.
const MAX_COMMAND: usize = 64;
/// Times of two profiles differ by as much as engines can tell them apart, unless somebody has set the clock.
const APART_NS: u64 = 1_000_000;
/// As far as clocks differ that nobody has set.
const CLOCKS_NS: u64 = 1_000_000_000;

/// A process's trace, and what the engine knows of it.
#[derive(Debug)]
pub(super) struct Followed {
    /// Its path, by which it is told from others.
    pub(super) trace: String,
    pub(super) pid: u32,
    /// The program's name.
    pub(super) command: String,
    following: Following<File>,
    /// The time that it was read up to, since 1970.
    unix_ns: u64,
    /// What was allocated, as far as the engine took it.
    pub(super) known: Option<Known>,
}

impl Followed {
    /// From its beginning.
    ///
    /// # Errors
    /// When it is no trace.
    pub(super) fn new(trace: String, mut file: File) -> Result<Self, String> {
        file.rewind().map_err(|error| error.to_string())?;
        let reader = Reader::new(Growing::new(file)).map_err(|error| error.to_string())?;
        let following = Following::new(reader);
        let process = following.process();
        let first =
            String::from_utf8_lossy(process.command.first().unwrap_or(&process.executable)).into_owned();
        let name = first.rsplit('/').next().unwrap_or_default();
        // A target may call itself anything.
        let fine = |c: char| if c.is_control() { '_' } else { c };
        let command = name.chars().take(MAX_COMMAND).map(fine).collect();
        Ok(Self { trace, pid: process.pid, command, following, unix_ns: 0, known: None })
    }

    /// Reads on up to where it was `len` bytes long at a time; what is written faster than it is read can wait.
    pub(super) fn read(&mut self, len: u64, time: SystemTime) {
        while let Step::Read = self.following.step() {
            // Where it is the length, there is no more, or what lies before it isn't all read.
            if self.following.offset() > len {
                break;
            }
        }
        let time = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let mut unix_ns = u64::try_from(time).unwrap_or(u64::MAX);
        if let Some(end) = self.following.end() {
            unix_ns = self.following.process().started_unix_ns.saturating_add(end.duration_ns);
        }
        let next = self.unix_ns.saturating_add(APART_NS);
        self.unix_ns = if unix_ns.abs_diff(next) < CLOCKS_NS { unix_ns.max(next) } else { unix_ns };
    }

    /// All figures until then, and when that is since 1970.
    pub(super) fn look(&mut self) -> (Analysis, u64) {
        (self.following.analysis(), self.unix_ns)
    }
}
