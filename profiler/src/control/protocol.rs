//! What clients and a recording say to each other: a line of JSON each, a request and then its answer.

use crate::leaks::Wanted;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest line of a request.
pub(crate) const MAX_REQUEST: usize = 4096;
/// The longest line of an answer.
pub(super) const MAX_ANSWER: usize = 16 << 20;

/// What is asked for. A process is one that is recorded, or grapnel itself, which means PROGRAM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// How the recording stands.
    Status {},
    /// Marks this moment.
    Mark {
        /// The process.
        pid: u32,
        /// What the moment is called.
        name: String,
    },
    /// From here on leaves out blocks that are given out.
    Pause {
        /// The process.
        pid: u32,
    },
    /// Records all again.
    Resume {
        /// The process.
        pid: u32,
    },
    /// The trace up to now.
    Snapshot {
        /// The process.
        pid: u32,
    },
    /// The trace up to now, with what a look for leaks found in the process's memory.
    Leaks {
        /// The process.
        pid: u32,
        /// What is looked for.
        wanted: Wanted,
    },
}

impl Request {
    /// How long the answer may take.
    pub(super) fn patience(&self) -> Duration {
        match self {
            // The whole trace is read back.
            Self::Leaks { .. } => Duration::from_secs(3600),
            _ => Duration::from_secs(10),
        }
    }
}

/// How a recording stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The process that records.
    pub(crate) grapnel: u32,
    /// Its version.
    pub(crate) version: String,
    /// PROGRAM's process.
    pub(crate) program: u32,
    /// Those that are recorded now, in the order in which they came.
    pub(crate) processes: Vec<ProcessStatus>,
}

/// How the recording of one process stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessStatus {
    /// Its id, as it calls itself.
    pub(crate) pid: u32,
    /// Its arguments.
    pub(crate) command: Vec<String>,
    /// Its trace.
    pub(crate) trace: String,
    /// How long it is recorded, in nanoseconds.
    pub(crate) duration_ns: u64,
    /// Events in the trace.
    pub(crate) events: u64,
    /// Bytes of the trace.
    pub(crate) trace_bytes: u64,
    /// The figures so far; nothing where nobody adds them up (`--quiet`).
    pub(crate) totals: Option<Figures>,
    /// Whether they are estimates from a sample.
    pub(crate) sampled: bool,
    /// Events that could not be recorded.
    pub(crate) lost_events: u64,
    /// Whether it is paused.
    pub(crate) paused: bool,
}

/// Figures of a process's own heap: those of `grapnel_analysis::Totals`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) reallocations: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) live_blocks: u64,
    pub(crate) live_bytes: u64,
    pub(crate) peak_bytes: u64,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// To [`Request::Status`].
    Status(Status),
    /// The moment is marked.
    Marked {
        /// Its time, in nanoseconds since the recording began.
        time_ns: u64,
    },
    /// It is done.
    Done,
    /// So many bytes follow, which are the trace.
    Snapshot {
        /// How many.
        bytes: u64,
        /// The trace that they are of.
        trace: String,
    },
    /// It can't be done.
    Refused {
        /// Why, in a sentence.
        error: String,
    },
}

/// Why something can't be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Refusal {
    /// It is no request, or one of another version.
    #[error("this is no request that grapnel {version} knows: {0}", version = env!("CARGO_PKG_VERSION"))]
    Unknown(String),
    /// Nobody records that process here.
    #[error("{0}: this process is not recorded any more")]
    NotRecorded(u32),
    /// What was recorded can't be read back.
    #[error(
        "{0}: the trace is no plain file, and what went into it can't be read back; give `grapnel run` one by -o"
    )]
    NotAFile(String),
    /// The trace has come to its end early.
    #[error("there is no trace any more: {0}")]
    NoTrace(String),
    /// It is too long.
    #[error("a request has at most {MAX_REQUEST} bytes")]
    TooLong,
    /// The process can't be looked through.
    #[error("no leaks were looked for: {0}")]
    NoLook(String),
    /// It is gone.
    #[error("the process ended meanwhile")]
    Ended,
    /// The drain doesn't come to it.
    #[error("the recording is busy; ask again")]
    Busy,
    /// The drain is no more.
    #[error("the recording is over")]
    Over,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_is_documented_and_nothing_else() {
        let read = |text: &str| serde_json::from_str::<Request>(text).ok();
        assert_eq!(read(r#"{"request":"status"}"#), Some(Request::Status {}));
        for bad in ["", "{}", r#"{"request":"halt"}"#, r#"{"request":"status","pid":1}"#, "[]", "\0"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
