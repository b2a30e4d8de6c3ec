//! Starts PROGRAM: with the agent in its environment, and in all else as if grapnel were not there.
//!
//! # Safety
//! Between fork and exec the child makes system calls on memory that the parent prepared; it allocates nothing
//! and takes no lock.

use super::program::Program;
use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What SIGPIPE did before Rust's runtime chose to ignore it.
static SIGPIPE_WAS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static SIGXFSZ_WAS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

/// Runs before Rust's runtime, which changes SIGPIPE. A full disk must be an error here, not a signal, so
/// SIGXFSZ goes the same way.
extern "C" fn remember_signals() {
    // SAFETY: reads and writes signal dispositions, in the only thread.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut old) == 0 {
            SIGPIPE_WAS.store(old.sa_sigaction, Ordering::Relaxed);
        }
        SIGXFSZ_WAS.store(libc::signal(libc::SIGXFSZ, libc::SIG_IGN), Ordering::Relaxed);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER_SIGNALS: extern "C" fn() = remember_signals;

/// A child that exists but waits for leave to become PROGRAM.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) pid: libc::pid_t,
    go: c_int,
    failed: c_int,
}

/// The environment of PROGRAM: this process's, with the agent's variables at its end, or in front of the user's
/// own LD_PRELOAD.
fn environment(agent: &str, session: &str) -> Vec<CString> {
    let mut entries: Vec<OsString> = Vec::new();
    let mut preloaded = false;
    for (name, value) in std::env::vars_os() {
        let mut entry = name.clone();
        entry.push("=");
        if name == "LD_PRELOAD" && !preloaded {
            preloaded = true;
            entry.push(agent);
            entry.push(":");
        }
        entry.push(value);
        if name != grapnel_trace::shared::SESSION_VARIABLE {
            entries.push(entry);
        }
    }
    if !preloaded {
        entries.push(format!("LD_PRELOAD={agent}").into());
    }
    entries.push(format!("{}={session}", grapnel_trace::shared::SESSION_VARIABLE).into());
    entries.iter().filter_map(|entry| CString::new(entry.as_bytes()).ok()).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

fn pipe() -> io::Result<[c_int; 2]> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(ends)
}

/// Forks. `mask` is the signal mask that PROGRAM is to have.
pub(crate) fn fork(
    program: &Program,
    command: &[OsString],
    agent: &str,
    session: &str,
    mask: &libc::sigset_t,
) -> io::Result<Waiting> {
    let bad = || io::Error::new(io::ErrorKind::InvalidInput, "an argument contains a zero byte");
    let path = program.c_path().ok_or_else(bad)?;
    let c_string = |argument: &OsString| CString::new(argument.as_bytes()).map_err(|_| bad());
    let arguments = command.iter().map(c_string).collect::<Result<Vec<_>, _>>()?;
    let environment = environment(agent, session);
    // What a shell does with a file that is neither a program nor names an interpreter.
    let mut script = vec![c"/bin/sh".to_owned(), path.clone()];
    script.extend(arguments.iter().skip(1).cloned());
    let (argv, envp, script_argv) = (pointers(&arguments), pointers(&environment), pointers(&script));
    let [go_read, go_write] = pipe()?;
    let [failed_read, failed_write] = pipe()?;
    // SAFETY: see the module's header; the process has one thread.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let mut byte = 0u8;
            // SAFETY: as above; all pointers lead to memory made before the fork.
            unsafe {
                libc::close(go_write);
                if libc::read(go_read, (&raw mut byte).cast(), 1) != 1 {
                    libc::_exit(125);
                }
                libc::signal(libc::SIGPIPE, SIGPIPE_WAS.load(Ordering::Relaxed));
                libc::signal(libc::SIGXFSZ, SIGXFSZ_WAS.load(Ordering::Relaxed));
                libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
                libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr());
                if *libc::__errno_location() == libc::ENOEXEC {
                    libc::execve(script[0].as_ptr(), script_argv.as_ptr(), envp.as_ptr());
                }
                let error = *libc::__errno_location();
                libc::write(failed_write, (&raw const error).cast(), size_of::<c_int>());
                libc::_exit(126)
            }
        }
        pid => {
            // SAFETY: our own descriptors, each closed once.
            unsafe {
                libc::close(go_read);
                libc::close(failed_write);
            }
            Ok(Waiting { pid, go: go_write, failed: failed_read })
        }
    }
}

impl Waiting {
    /// Lets it become PROGRAM.
    ///
    /// # Errors
    /// What execve said.
    pub(crate) fn go(self) -> io::Result<()> {
        let mut error: c_int = 0;
        // SAFETY: our own descriptors; the buffers are as long as said.
        let len = unsafe {
            libc::write(self.go, [1u8].as_ptr().cast(), 1);
            libc::close(self.go);
            let len = loop {
                let len = libc::read(self.failed, (&raw mut error).cast(), size_of::<c_int>());
                if len >= 0 || *libc::__errno_location() != libc::EINTR {
                    break len;
                }
            };
            libc::close(self.failed);
            len
        };
        if len > 0 {
            reap(self.pid);
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(())
    }

    /// Ends it before it became anything.
    pub(crate) fn give_up(self) {
        // SAFETY: our own descriptors; closing `go` without a byte makes the child exit.
        unsafe {
            libc::close(self.go);
            libc::close(self.failed);
        }
        reap(self.pid);
    }
}

/// Waits for the child's end and returns its status as `waitpid` gives it.
pub(crate) fn reap(pid: libc::pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: `status` is live.
    while unsafe { libc::waitpid(pid, &mut status, 0) } < 0 {
        if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            break;
        }
    }
    status
}

/// Signals that are PROGRAM's business. Those of the terminal reach it by themselves; others it gets from us.
const FORWARDED: [c_int; 6] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// Blocks them, in this thread and all that it starts, and returns the mask as it was.
pub(crate) fn block_forwarded() -> libc::sigset_t {
    // SAFETY: the sets are initialised before use.
    unsafe {
        let (mut set, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&mut set);
        for signal in FORWARDED {
            libc::sigaddset(&mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &set, &mut old);
        old
    }
}

static OVER: AtomicBool = AtomicBool::new(false);

/// Passes on to `pid` what others send to grapnel, until PROGRAM is over. A thread's work.
pub(crate) fn forward_signals(pid: libc::pid_t) {
    // SAFETY: the set is initialised before use; `info` is written before it is read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in FORWARDED {
            libc::sigaddset(&mut set, signal);
        }
        while !OVER.load(Ordering::Relaxed) {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let timeout = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let signal = libc::sigtimedwait(&set, &mut info, &timeout);
            // The terminal's signals come from the kernel, to the whole foreground group.
            if signal > 0 && info.si_code != libc::SI_KERNEL && !OVER.load(Ordering::Relaxed) {
                libc::kill(pid, signal);
            }
        }
    }
}

/// PROGRAM was reaped: its process id may be another's soon.
pub(crate) fn program_is_over() {
    OVER.store(true, Ordering::Relaxed);
}

/// Ends this process by the signal that ended PROGRAM, leaving a core dump to PROGRAM.
pub(crate) fn die_by(signal: c_int) -> ! {
    // SAFETY: changes this process's own limits, dispositions and mask, at its end.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}

/// The name by which a trace of this command goes: letters, digits and `._+-` of the program's name.
pub(crate) fn short_name(program: &OsStr) -> String {
    let name = program.as_bytes().rsplit(|&byte| byte == b'/').find(|part| !part.is_empty());
    let fine = |byte: &u8| byte.is_ascii_alphanumeric() || b"._+-".contains(byte);
    let name: String = name
        .unwrap_or(b"program")
        .iter()
        .take(64)
        .map(|byte| if fine(byte) { *byte as char } else { '_' })
        .collect();
    // No hidden files.
    name.strip_prefix('.').map_or(name.clone(), |rest| format!("_{rest}"))
}
