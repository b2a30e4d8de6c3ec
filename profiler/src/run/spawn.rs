//! Starts PROGRAM: with the agent in its environment, and in all else as if grapnel were not there.
//!
//! # Safety
//! Between fork and exec the child makes system calls on memory that the parent prepared; it allocates nothing
//! and takes no lock.

use super::limits::Limits;
use super::program::Program;
use super::signals::STOPS;
use super::timers::Timers;
use super::wait::reap;
use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Signals whose dispositions we change for ourselves, and what they were: Rust's runtime ignores SIGPIPE; a full
/// disk must be an error here, not a signal; and a child whose end is ignored can't be waited for.
static CHANGED: [(c_int, AtomicUsize); 3] = [
    (libc::SIGPIPE, AtomicUsize::new(libc::SIG_DFL)),
    (libc::SIGXFSZ, AtomicUsize::new(libc::SIG_DFL)),
    (libc::SIGCHLD, AtomicUsize::new(libc::SIG_DFL)),
];

/// Bit N: descriptor N of the standard three was closed, before Rust's runtime opened /dev/null there.
static CLOSED: AtomicUsize = AtomicUsize::new(0);

/// Runs before Rust's runtime.
extern "C" fn remember_state() {
    // SAFETY: asks about descriptors and changes signal dispositions, in the only thread.
    unsafe {
        for fd in 0..3 {
            if libc::fcntl(fd, libc::F_GETFD) < 0 {
                CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
            }
        }
        for (signal, was) in &CHANGED {
            let to = if *signal == libc::SIGCHLD { libc::SIG_DFL } else { libc::SIG_IGN };
            was.store(libc::signal(*signal, to), Ordering::Relaxed);
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER_STATE: extern "C" fn() = remember_state;

/// A child that exists but waits for leave to become PROGRAM.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) pid: libc::pid_t,
    go: c_int,
    failed: c_int,
    inherited: Vec<c_int>,
}

/// The environment of PROGRAM: this process's, with the agent's variables at its end, or in front of the user's
/// own LD_PRELOAD. Whatever else is in it stays, names or not.
fn environment(agent: &str, session: &str) -> Vec<CString> {
    const PRELOAD: &[u8] = b"LD_PRELOAD=";
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    let own = format!("{}=", grapnel_trace::shared::SESSION_VARIABLE);
    let mut entries = Vec::new();
    let mut preloaded = false;
    // SAFETY: null, or a null-terminated array of strings, which nobody changes: there is one thread.
    let mut next = unsafe { environ };
    // SAFETY: as above.
    while let Some(entry) = unsafe { next.as_ref() }.filter(|entry| !entry.is_null()) {
        // SAFETY: as above.
        let text = unsafe { std::ffi::CStr::from_ptr(*entry) };
        let bytes = text.to_bytes();
        if let Some(value) = bytes.strip_prefix(PRELOAD) {
            preloaded = true;
            entries.extend(CString::new([PRELOAD, agent.as_bytes(), b":", value].concat()));
        } else if !bytes.starts_with(own.as_bytes()) {
            entries.push(text.to_owned());
        }
        // SAFETY: the array goes on to its null pointer.
        next = unsafe { next.add(1) };
    }
    if !preloaded {
        entries.extend(CString::new([PRELOAD, agent.as_bytes()].concat()));
    }
    // Twice where the user has an LD_PRELOAD: the agent takes an even number of variables out, so that the auxiliary vector is found
    // behind the rest.
    for _ in 0..=usize::from(preloaded) {
        entries.extend(CString::new([own.as_bytes(), session.as_bytes()].concat()));
    }
    entries
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

/// What PROGRAM is to have as this process was started with it.
#[derive(Clone, Copy)]
pub(crate) struct AsItWas<'a> {
    pub(crate) mask: &'a libc::sigset_t,
    pub(crate) limits: &'a Limits,
    pub(crate) timers: &'a Timers,
}

/// Forks. `inherited` is what [`inherited_descriptors`] said at the start.
pub(crate) fn fork(
    program: &Program,
    command: &[OsString],
    agent: &str,
    session: &str,
    AsItWas { mask, limits, timers }: &AsItWas<'_>,
    inherited: Vec<c_int>,
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
                limits.restore();
                for (signal, was) in &CHANGED {
                    libc::signal(*signal, was.load(Ordering::Relaxed));
                }
                for fd in (0..3).filter(|fd| CLOSED.load(Ordering::Relaxed) & 1 << fd != 0) {
                    libc::close(fd);
                }
                forget_stops();
                timers.set();
                libc::sigprocmask(libc::SIG_SETMASK, *mask, std::ptr::null_mut());
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
            Ok(Waiting { pid, go: go_write, failed: failed_read, inherited })
        }
    }
}

/// Takes back the terminal's stops that came while all signals were blocked. A child that stops before it is PROGRAM would
/// be waited for by a process that no terminal can stop.
///
/// # Safety
/// Makes system calls only, on live structures; to be called with these signals blocked.
unsafe fn forget_stops() {
    // SAFETY: as above.
    unsafe {
        let mut stops = std::mem::zeroed();
        libc::sigemptyset(&mut stops);
        for signal in STOPS {
            libc::sigaddset(&mut stops, signal);
        }
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        while libc::sigtimedwait(&stops, std::ptr::null_mut(), &now) > 0 {}
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
        let_go_of_descriptors(&self.inherited);
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

/// Descriptors of this process above the standard three, which PROGRAM is to have and we have no use for.
pub(crate) fn inherited_descriptors() -> Vec<c_int> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let number = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let numbers: Vec<c_int> = entries.filter_map(number).filter(|&fd| fd > 2).collect();
    // The directory's own is closed by now.
    // SAFETY: asks about descriptors.
    numbers.into_iter().filter(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0).collect()
}

/// Lets go of what only PROGRAM reads and writes, so that the ends of its pipes close when it closes them.
fn let_go_of_descriptors(inherited: &[c_int]) {
    // SAFETY: nothing here uses standard input and output, or descriptors that were open before us.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if null >= 0 {
            libc::dup2(null, libc::STDIN_FILENO);
            libc::dup2(null, libc::STDOUT_FILENO);
            libc::close(null);
        }
        for &fd in inherited {
            libc::close(fd);
        }
    }
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
