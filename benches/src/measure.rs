//! Runs a workload and takes its time.

use crate::workloads::{self, Workload};
use grapnel_tests::{programs, run, truth};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How a workload is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// By itself.
    Bare,
    /// `heaptrack -r`: records, and leaves the analysis for later.
    Heaptrack,
    /// `grapnel run -q`.
    Grapnel,
    /// `grapnel run`, which counts while it records, for the summary.
    Counting,
    /// `grapnel run -q --off`: the agent is loaded, and nothing hooked.
    Off,
    /// `grapnel run -q --sample 524288`.
    Sampled,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// From the start to the end of the tool, in seconds.
    pub wall: f64,
    /// Processor time of all processes of the run, the tool's own included, in seconds.
    pub cpu: f64,
    /// Bytes of all files that the tool left.
    pub trace_bytes: u64,
}

/// Why a workload could not be measured.
#[derive(Debug)]
pub struct Failed(pub String);

impl std::fmt::Display for Failed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

fn failed(what: &str, error: impl std::fmt::Display) -> Failed {
    Failed(format!("{what}: {error}"))
}

/// Processor time of this process's ended children, in seconds. Not from `/proc`, which counts in hundredths.
fn children_cpu() -> f64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: it fills in a structure of this type; one of zeros is valid too, should it fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

pub(crate) fn prefix(tool: Tool, dir: &Path) -> Vec<OsString> {
    let grapnel = |options: &[&str]| {
        let mut words: Vec<OsString> = vec![programs::grapnel().into(), "run".into()];
        words.extend(options.iter().map(OsString::from));
        words.extend(["-o".into(), dir.join("t.grapnel").into(), "--".into()]);
        words
    };
    match tool {
        Tool::Bare => Vec::new(),
        Tool::Heaptrack => vec!["heaptrack".into(), "-r".into(), "-o".into(), dir.join("t").into()],
        Tool::Grapnel => grapnel(&["-q"]),
        Tool::Counting => grapnel(&[]),
        Tool::Off => grapnel(&["-q", "--off"]),
        Tool::Sampled => grapnel(&["-q", "--sample", "524288"]),
    }
}

pub(crate) fn command(workload: &Workload, before: &[OsString]) -> Result<Command, Failed> {
    let all: Vec<&OsString> = before.iter().chain(&workload.argv).collect();
    let mut command = Command::new(all[0]);
    let stdin = File::open(&workload.stdin).map_err(|error| failed("stdin", error))?;
    command.args(&all[1..]).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LANG", "C.UTF-8");
    command.envs(workload.env.iter().copied()).stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Runs the workload once.
///
/// # Errors
/// When it can't be started, fails, or leaves no trace.
pub fn run_once(workload: &Workload, tool: Tool) -> Result<Sample, Failed> {
    let dir = run::temporary_dir();
    let mut command = command(workload, &prefix(tool, dir.path()))?;
    let said = tempfile::tempfile().and_then(|file| Ok((file.try_clone()?, file)));
    let (mut said, errors) = said.map_err(|error| failed("a file for messages", error))?;
    command.stderr(errors);
    let cpu = children_cpu();
    let start = Instant::now();
    let mut child =
        command.spawn().map_err(|error| failed(&format!("{tool:?} of {}", workload.name), error))?;
    // Not a poll: the time of a wait would be rounded up to its interval.
    let status = child.wait().map_err(|error| failed(workload.name, error))?;
    let wall = start.elapsed();
    let cpu = children_cpu() - cpu;
    if !status.success() {
        let mut text = String::new();
        let read = said.seek(SeekFrom::Start(0)).and_then(|_| said.read_to_string(&mut text));
        let text = read.map_or_else(|error| error.to_string(), |_| text);
        return Err(failed(&format!("{tool:?} of {}", workload.name), format!("{status}: {text}")));
    }
    let trace_bytes = bytes_in(dir.path());
    if tool != Tool::Bare && trace_bytes == 0 {
        return Err(Failed(format!("{tool:?} of {} left no trace", workload.name)));
    }
    Ok(Sample { wall: wall.as_secs_f64(), cpu, trace_bytes })
}

fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|facts| facts.len()).sum()
}

/// Runs a command that must succeed, without input or output.
///
/// # Errors
/// When it can't be started or fails.
pub(crate) fn timed(mut command: Command) -> Result<Sample, Failed> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let cpu = children_cpu();
    let start = Instant::now();
    let status = command.status().map_err(|error| failed(&format!("{command:?}"), error))?;
    let wall = start.elapsed().as_secs_f64();
    if !status.success() {
        return Err(failed(&format!("{command:?}"), status));
    }
    Ok(Sample { wall, cpu: children_cpu() - cpu, trace_bytes: 0 })
}

/// The most memory that any process of a command had, in bytes: what the kernel had in memory for it.
///
/// # Errors
/// When it can't be started or fails, or none of its processes tells.
pub(crate) fn most_memory(mut command: Command) -> Result<u64, Failed> {
    let told = run::temporary_dir();
    let library = programs::library_of(&workloads::source("peak.c"));
    command.env("PEAK_DIR", told.path()).env("LD_PRELOAD", library);
    let text = format!("{command:?}");
    timed(command)?;
    let texts = texts_in(told.path());
    let most = texts.iter().filter_map(|text| high_water(text)).max();
    most.ok_or_else(|| Failed(format!("{text} does not tell its peak")))
}

fn texts_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect()
}

fn field<'t>(status: &'t str, name: &str) -> Option<&'t str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// The peak of memory in a process's `status`, in bytes.
fn high_water(status: &str) -> Option<u64> {
    let kib = field(status, "VmHWM:")?.trim_end_matches("kB").trim().parse::<u64>().ok()?;
    Some(kib << 10)
}

/// The peak of the workload's own memory under the tool, in bytes: what the kernel had in memory for its process, what it
/// shares with the tool included.
///
/// # Errors
/// When it can't be started, fails, or doesn't tell.
pub fn peak(workload: &Workload, tool: Tool) -> Result<u64, Failed> {
    let (dir, told) = (run::temporary_dir(), run::temporary_dir());
    let library = programs::library_of(&workloads::source("peak.c"));
    let mut command = command(workload, &prefix(tool, dir.path()))?;
    command.env("PEAK_DIR", told.path()).env("LD_PRELOAD", library);
    let status = command.status().map_err(|error| failed(workload.name, error))?;
    if !status.success() {
        return Err(failed(&format!("{tool:?} of {}", workload.name), status));
    }
    let program = Path::new(&workload.argv[0]).file_name().unwrap_or_default().to_string_lossy();
    let texts = texts_in(told.path());
    let peaks = texts.iter().filter_map(|text| {
        // The kernel cuts long names off.
        let is_it = field(text, "Name:").is_some_and(|name| !name.is_empty() && program.starts_with(name));
        high_water(text).filter(|_| is_it)
    });
    peaks.max().ok_or_else(|| Failed(format!("{} does not tell its peak", workload.name)))
}

/// How many events the workload has, as the counting library of the tests sees it: successful allocations,
/// reallocations and frees.
///
/// # Errors
/// When it can't be started or fails.
pub fn events(workload: &Workload) -> Result<u64, Failed> {
    let dir = run::temporary_dir();
    let mut command = command(workload, &[])?;
    command.env("TRUTH_DIR", dir.path()).env("LD_PRELOAD", programs::truth_library());
    let mut child = command.spawn().map_err(|error| failed(workload.name, error))?;
    let status = run::wait(&mut child, Duration::from_secs(600));
    if !status.is_some_and(|status| status.success()) {
        return Err(Failed(format!("{} fails without any tool", workload.name)));
    }
    let totals = truth::read_dir(dir.path()).into_iter().map(|process| process.totals);
    Ok(totals.map(|totals| totals.allocations + totals.reallocations + totals.frees).sum())
}
