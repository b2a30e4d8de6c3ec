//! What is exported, how, and by what it is read back.

use grapnel_tests::programs;
use grapnel_tests::report::Report;
use grapnel_tests::run::{Case, Outcome, Recorded, grapnel};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

pub(crate) static RECORDED: LazyLock<Recorded> =
    LazyLock::new(|| Case::ours("leaks").arg(programs::library("leak_library")).recorded());
pub(crate) static REPORT: LazyLock<Report> = LazyLock::new(|| RECORDED.report());

/// The measures, and the figure of the whole report that each adds up to.
pub(crate) fn measures() -> [(&'static str, u64); 5] {
    let sum = |figure: fn(&grapnel_tests::report::Site) -> u64| REPORT.sites.iter().map(figure).sum();
    [
        ("peak", sum(|site| site.peak_bytes)),
        ("live", sum(|site| site.live_bytes)),
        ("allocated", sum(|site| site.allocated_bytes)),
        ("allocations", sum(|site| site.allocations)),
        ("temporary", sum(|site| site.temporary_allocations)),
    ]
}

pub(crate) fn export(arguments: &[&dyn AsRef<OsStr>]) -> Outcome {
    let trace = RECORDED.trace();
    let mut all: Vec<&OsStr> = vec!["export".as_ref(), trace.as_os_str()];
    all.extend(arguments.iter().map(|argument| argument.as_ref()));
    grapnel(all)
}

/// Exports to a file of this name, and answers its path.
pub(crate) fn exported(dir: &Path, name: &str, more: &[&str]) -> PathBuf {
    let path = dir.join(name);
    let mut arguments: Vec<&dyn AsRef<OsStr>> = vec![&"-o", &path];
    arguments.extend(more.iter().map(|argument| argument as &dyn AsRef<OsStr>));
    let outcome = export(&arguments);
    assert!(outcome.status.success(), "{}", outcome.err());
    assert_eq!(outcome.out(), "");
    path
}

/// What a tool prints that must like the file.
pub(crate) fn said_by(tool: &str, arguments: &[&OsStr]) -> String {
    let output = Command::new(tool).args(arguments).env("HOME", "/nonexistent").output();
    let output = output.unwrap_or_else(|error| panic!("{tool}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{tool}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Where `./test` puts the readers that come from other registries than Debian's.
pub(crate) fn readers() -> PathBuf {
    programs::target_dir().join("readers")
}

/// The sources of our own readers.
pub(crate) fn our_reader(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("readers").join(name)
}
