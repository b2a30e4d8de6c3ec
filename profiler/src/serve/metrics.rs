//! Figures in Prometheus's text format (version 0.0.4).

use crate::control::{ProcessStatus, Status};
use std::fmt::Write;

/// The form's name.
pub(super) const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A figure of a process: its name, its type, what it is, and where it is; nothing where nobody adds it up.
type Figure = (&'static str, &'static str, &'static str, fn(&ProcessStatus) -> Option<f64>);

const FIGURES: [Figure; 13] = [
    ("grapnel_heap_live_bytes", "gauge", "Bytes allocated and not freed.", |of| {
        Some(of.totals?.live_bytes as f64)
    }),
    ("grapnel_heap_live_blocks", "gauge", "Blocks allocated and not freed.", |of| {
        Some(of.totals?.live_blocks as f64)
    }),
    ("grapnel_heap_peak_bytes", "gauge", "The most bytes that were live.", |of| {
        Some(of.totals?.peak_bytes as f64)
    }),
    ("grapnel_heap_allocations_total", "counter", "Blocks allocated.", |of| {
        Some(of.totals?.allocations as f64)
    }),
    ("grapnel_heap_frees_total", "counter", "Blocks freed.", |of| Some(of.totals?.frees as f64)),
    ("grapnel_heap_reallocations_total", "counter", "Blocks reallocated.", |of| {
        Some(of.totals?.reallocations as f64)
    }),
    ("grapnel_heap_allocated_bytes_total", "counter", "Bytes allocated and reallocated.", |of| {
        Some(of.totals?.allocated_bytes as f64)
    }),
    ("grapnel_recorded_events_total", "counter", "Events in the trace.", |of| Some(of.events as f64)),
    ("grapnel_lost_events_total", "counter", "Events that could not be recorded.", |of| {
        Some(of.lost_events as f64)
    }),
    ("grapnel_trace_bytes", "gauge", "Length of the trace.", |of| Some(of.trace_bytes as f64)),
    ("grapnel_recording_seconds", "gauge", "How long the process is recorded.", |of| {
        Some(of.duration_ns as f64 / 1e9)
    }),
    ("grapnel_recording_paused", "gauge", "Whether the recording is paused.", |of| {
        Some(f64::from(u8::from(of.paused)))
    }),
    ("grapnel_recording_sampled", "gauge", "Whether the figures are estimates from a sample.", |of| {
        Some(f64::from(u8::from(of.sampled)))
    }),
];

/// The figures of all processes.
pub(super) fn of(status: &Status) -> String {
    let mut text = String::new();
    for (name, kind, help, figure) in FIGURES {
        // Writing into a string never fails.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for process in &status.processes {
            if let Some(value) = figure(process) {
                let (pid, command) = (process.pid, label(process));
                let _ = writeln!(text, "{name}{{pid=\"{pid}\",command=\"{command}\"}} {value}");
            }
        }
    }
    text
}

/// The program's name, as it can stand between quotes. A target may call itself anything.
fn label(process: &ProcessStatus) -> String {
    const LONGEST: usize = 64;
    let name = process.command.first().map_or("", |command| command.rsplit('/').next().unwrap_or(command));
    let fine = |c: char| if c.is_control() || c == '"' || c == '\\' { '_' } else { c };
    name.chars().take(LONGEST).map(fine).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Figures;

    #[test]
    fn each_figure_is_told_for_each_process() {
        let totals = Figures { live_bytes: 1 << 40, ..Figures::default() };
        let process = |pid, command: &str, totals| ProcessStatus {
            pid,
            command: vec![command.into()],
            totals,
            ..ProcessStatus::default()
        };
        let evil = "/usr/bin/x\"} 1\nother{\\";
        let status = Status {
            processes: vec![process(7, "/bin/a", Some(totals)), process(8, evil, None)],
            ..Status::default()
        };
        let text = of(&status);
        assert!(text.contains("grapnel_heap_live_bytes{pid=\"7\",command=\"a\"} 1099511627776\n"), "{text}");
        assert!(!text.contains("grapnel_heap_live_bytes{pid=\"8\""), "{text}");
        assert!(text.contains("grapnel_trace_bytes{pid=\"8\",command=\"x_} 1_other{_\"} 0\n"), "{text}");
        assert_eq!(text.matches("# TYPE ").count(), FIGURES.len());
    }
}
