//! What the end-to-end tests share: the programs that are profiled, running them with and without grapnel, the
//! ground truth, and the JSON report.
//!
//! The tests themselves are in `tests/tests/`, the programs in `tests/programs/`, the counting library in
//! `tests/truth/`. Nothing here links grapnel: it is judged as the executable that people use.

pub mod attaching;
pub mod browser;
pub mod counted;
pub mod engine;
pub mod going;
pub mod group;
pub mod leaks;
pub mod older;
pub mod programs;
pub mod report;
pub mod run;
pub mod stepping;
pub mod terminal;
pub mod truth;

/// Says on stderr, past the test harness's capture, that something could not be tested here.
pub fn skipped(what: &str, why: &str) {
    use std::io::Write;
    let line = format!("\nSKIPPED: {what}: {why}\n");
    // Straight to the descriptor: the harness captures only the print macros of passing tests.
    if std::io::stderr().write_all(line.as_bytes()).is_err() {
        eprintln!("{line}");
    }
}

/// Whether this runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
