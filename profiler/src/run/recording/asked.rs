//! What clients ask of one recording.

use super::Recording;
use crate::control::ProcessStatus;
use crate::run::identity::{pieces, text};
use crate::run::process::monotonic_ns;
use grapnel_trace::writer::Writer;
use std::sync::atomic::Ordering;

impl Recording {
    /// How it stands.
    pub(crate) fn status(&self) -> ProcessStatus {
        let header = self.segment.header();
        let text_of = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        ProcessStatus {
            pid: self.id.pid(),
            command: pieces(&text(&header.command)).iter().map(text_of).collect(),
            trace: self.path.to_string_lossy().into_owned(),
            duration_ns: monotonic_ns().saturating_sub(self.started_ns),
            events: self.events.all,
            trace_bytes: self.writer.as_ref().map_or(self.written, Writer::written),
            live_bytes: self.totals.is_some().then(|| self.totals().live_bytes),
            lost_events: header.lost.load(Ordering::Relaxed),
        }
    }
}
