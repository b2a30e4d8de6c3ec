//! How many instructions recording takes, counted by single steps: the same on a busy machine as on an idle one.
//!
//! # Safety
//! `ptrace` is asked about a process that this one started, or that one which it started did, and that is stopped.

use crate::measure::Failed;
use crate::workloads;
use grapnel_tests::{programs, run};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What ran between the program's two reads.
#[derive(Debug, Default)]
pub struct Counted {
    /// By mapping, the program's own name for it.
    pub by_mapping: BTreeMap<String, u64>,
    /// How often each instruction of the agent ran, by its offset in the agent's file.
    pub agent: BTreeMap<u64, u64>,
}

impl Counted {
    /// All of it.
    pub fn all(&self) -> u64 {
        self.by_mapping.values().sum()
    }
}

/// Executable memory of a process.
#[derive(Debug)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    name: String,
}

fn failed(what: &str, error: impl std::fmt::Display) -> Failed {
    Failed(format!("{what}: {error}"))
}

fn mappings(process: i32) -> Result<Vec<Mapping>, Failed> {
    let text = std::fs::read_to_string(format!("/proc/{process}/maps"))
        .map_err(|error| failed("the program's mappings", error))?;
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let (range, access, offset) = (words.next()?, words.next()?, words.next()?);
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let path = words.nth(2).unwrap_or("code without a name");
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let found = Mapping { start: number(start)?, end: number(end)?, offset: number(offset)?, name };
        access.contains('x').then_some(found)
    };
    Ok(text.lines().filter_map(mapping).collect())
}

/// Runs the program with so many rounds, under grapnel or by itself, and counts.
///
/// # Errors
/// When it can't be started or traced, or fails.
#[cfg(target_arch = "x86_64")]
pub fn count(rounds: u32, recorded: bool) -> Result<Counted, Failed> {
    let dir = run::temporary_dir();
    let program = programs::executable_of(&workloads::source("instructions.cc"));
    let mut command = if recorded {
        let mut command = Command::new(programs::grapnel());
        command.args(["run", "-q", "-o"]).arg(dir.path().join("t.grapnel")).arg("--").arg(program);
        command
    } else {
        Command::new(program)
    };
    let child = command.arg(rounds.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| failed("the program can't be started", error))?;
    let counted = counted_in(&mut child);
    // Whatever came of it: a program without input ends.
    drop(child.stdin.take());
    let status = child.wait().map_err(|error| failed("the program's end", error))?;
    let counted = counted?;
    if status.success() { Ok(counted) } else { Err(failed("the program", status)) }
}

/// As above, elsewhere.
///
/// # Errors
/// Always: registers have other names there.
#[cfg(not(target_arch = "x86_64"))]
pub fn count(_rounds: u32, _recorded: bool) -> Result<Counted, Failed> {
    Err(Failed("instructions are counted on x86-64 alone".into()))
}

#[cfg(target_arch = "x86_64")]
fn counted_in(child: &mut Child) -> Result<Counted, Failed> {
    let (Some(stdin), Some(stdout)) = (&mut child.stdin, &mut child.stdout) else {
        return Err(Failed("the program has no pipes".into()));
    };
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).map_err(|error| failed("what the program says", error))?;
    let process: i32 = line.trim().parse().map_err(|error| failed("the program's id", error))?;
    let traced = Traced::stop(process)?;
    let mappings = mappings(process)?;
    stdin.write_all(b"12").map_err(|error| failed("the program's input", error))?;
    let (mut counted, mut before, mut reads) = (Counted::default(), traced.registers()?, 0);
    // Stopped in the middle of its first read, it makes that anew.
    let is_in_call = before.orig_rax.cast_signed() >= 0 && before.rax.cast_signed() < 0;
    before.rax = if is_in_call { before.orig_rax } else { before.rax };
    while reads < 2 {
        traced.step()?;
        let now = traced.registers()?;
        // A system call leaves the address behind it in rcx.
        let is_read = before.rax == libc::SYS_read as u64 && before.rdi == 0;
        reads += u32::from(is_read && now.rcx == now.rip);
        if reads == 1 {
            let found = mappings.iter().find(|one| (one.start..one.end).contains(&now.rip));
            let name = found.map_or("elsewhere", |one| &one.name);
            *counted.by_mapping.entry(name.to_owned()).or_default() += 1;
            if let Some(mapping) = found.filter(|one| one.name.contains("grapnel_agent")) {
                *counted.agent.entry(now.rip - mapping.start + mapping.offset).or_default() += 1;
            }
        }
        before = now;
    }
    Ok(counted)
}

/// A process that is traced. It goes on when this ends.
#[cfg(target_arch = "x86_64")]
#[derive(Debug)]
struct Traced(i32);

#[cfg(target_arch = "x86_64")]
impl Traced {
    fn stop(process: i32) -> Result<Self, Failed> {
        ask(libc::PTRACE_SEIZE, process, std::ptr::null_mut())?;
        let traced = Self(process);
        ask(libc::PTRACE_INTERRUPT, process, std::ptr::null_mut())?;
        traced.wait()?;
        Ok(traced)
    }

    fn wait(&self) -> Result<(), Failed> {
        let mut status = 0;
        // SAFETY: waits for the process that is traced, and writes into a number.
        let found = unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) };
        if found != self.0 {
            return Err(failed("waiting", std::io::Error::last_os_error()));
        }
        if libc::WIFSTOPPED(status) { Ok(()) } else { Err(Failed("the program ended".into())) }
    }

    fn step(&self) -> Result<(), Failed> {
        ask(libc::PTRACE_SINGLESTEP, self.0, std::ptr::null_mut())?;
        self.wait()
    }

    fn registers(&self) -> Result<libc::user_regs_struct, Failed> {
        let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
        ask(libc::PTRACE_GETREGS, self.0, registers.as_mut_ptr().cast())?;
        // SAFETY: made of numbers, all of which were zero before they were filled in.
        Ok(unsafe { registers.assume_init() })
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for Traced {
    fn drop(&mut self) {
        let _ = ask(libc::PTRACE_DETACH, self.0, std::ptr::null_mut());
    }
}

#[cfg(target_arch = "x86_64")]
fn ask(request: libc::c_uint, process: i32, data: *mut libc::c_void) -> Result<(), Failed> {
    // SAFETY: none of the requests made here writes anywhere but to `data`, which has room for what is asked for.
    match unsafe { libc::ptrace(request, process, std::ptr::null_mut::<libc::c_void>(), data) } {
        0 => Ok(()),
        _ => Err(failed("the program can't be traced", std::io::Error::last_os_error())),
    }
}
