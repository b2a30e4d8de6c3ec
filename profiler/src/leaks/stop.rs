//! All threads of a process, stopped where they are, and their registers.
//!
//! By ptrace, without a signal: PTRACE_SEIZE and PTRACE_INTERRUPT are seen by nobody but the tracer, and a system call that is
//! interrupted goes on afterwards. No notice is waited for: whether a thread stands still is known when its registers can be
//! read. So whoever waits for children in this process can't take a notice away, and only has to leave those alone that
//! aren't of a stop by a signal (see `run::wait`).
//!
//! # Safety
//! ptrace requests on thread ids that this thread has seized, with live structures of the length that the request is
//! told; a copy of another process's memory into a live buffer. Only the thread that stopped a process may let it go on: the value can't be sent to another.

use super::registers::{self, Values};
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// How long threads may take to stand still: one in the middle of a page fault from a slow disk takes its time.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(30);

/// Why a process can't be stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StopError {
    /// It is gone.
    #[error("the process has ended")]
    Gone,
    /// Somebody else traces it, or it may not be traced.
    #[error("the process can't be stopped: {0}; is it in a debugger, or is ptrace forbidden here?")]
    Refused(io::Error),
    /// A thread doesn't stand still.
    #[error("thread {thread} does not stop: it waits in the kernel")]
    Busy {
        /// Its id.
        thread: u32,
    },
}

/// A thread that stands still.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) id: u32,
    pub(crate) values: Values,
}

/// A process whose threads stand still until this is dropped.
#[derive(Debug)]
pub(crate) struct Stopped {
    pid: u32,
    seized: Vec<u32>,
    threads: Vec<Thread>,
    /// The thread that seized them has to let them go.
    _here: PhantomData<*const ()>,
}

impl Stopped {
    /// Stops a process.
    ///
    /// # Errors
    /// When it can't be; its threads go on then.
    pub(crate) fn stop(pid: u32) -> Result<Self, StopError> {
        let mut stopped = Self { pid, seized: Vec::new(), threads: Vec::new(), _here: PhantomData };
        let start = Instant::now();
        let mut waited = 0;
        // Threads that run may start others.
        while stopped.seize_new()? {
            for at in waited..stopped.seized.len() {
                stopped.wait_for(stopped.seized[at], start)?;
            }
            waited = stopped.seized.len();
        }
        if stopped.threads.is_empty() { Err(StopError::Gone) } else { Ok(stopped) }
    }

    /// Its threads.
    pub(crate) fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// Whether it is the first thread of a child of ours: who waits for that learns of its end as of any other's.
    fn is_own_child(&self, thread: u32) -> bool {
        let parent = || stat(self.pid, thread).and_then(|(_, parent)| parent.parse().ok());
        thread == self.pid && parent() == Some(std::process::id())
    }

    /// Seizes threads that were not there before. False when there are none.
    fn seize_new(&mut self) -> Result<bool, StopError> {
        let mut any = false;
        for thread in ids(self.pid)? {
            if self.seized.contains(&thread) {
                continue;
            }
            match request(libc::PTRACE_SEIZE, thread, 0) {
                Ok(()) => {
                    any = true;
                    self.seized.push(thread);
                    // If it is gone by now, that is seen where it is waited for.
                    let _ = request(libc::PTRACE_INTERRUPT, thread, 0);
                }
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(_) if is_dead(self.pid, thread) => {}
                Err(error) => return Err(StopError::Refused(error)),
            }
        }
        Ok(any)
    }

    fn wait_for(&mut self, thread: u32, start: Instant) -> Result<(), StopError> {
        loop {
            if let Ok(values) = registers::read(thread) {
                self.threads.push(Thread { id: thread, values });
                return Ok(());
            }
            if is_dead(self.pid, thread) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(StopError::Busy { thread });
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for &thread in &self.seized {
            // A signal that it was about to get when it stopped.
            let signal = pending_signal(thread);
            if signal == 0 {
                registers::begin_call_anew(thread);
            }
            if request(libc::PTRACE_DETACH, thread, signal).is_err() && !self.is_own_child(thread) {
                reap(thread);
            }
        }
    }
}

/// Copies bytes from a process's memory, and says how many there are before the first that can't be read this way. Twice as
/// fast as its file in /proc, which has more rights.
pub(super) fn copy(pid: u32, address: u64, bytes: &mut [u8]) -> usize {
    let mut len = 0;
    while len < bytes.len() {
        let rest = &mut bytes[len..];
        let from = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut((address + len as u64) as usize),
            iov_len: rest.len(),
        };
        let to = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        // SAFETY: one live buffer, which the kernel fills no further than said; the other is only read, in its own process.
        let read = unsafe { libc::process_vm_readv(pid.cast_signed(), &to, 1, &from, 1, 0) };
        match usize::try_from(read) {
            Ok(0) | Err(_) => break,
            Ok(read) => len += read,
        }
    }
    len
}

/// The threads of a process.
fn ids(pid: u32) -> Result<Vec<u32>, StopError> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| StopError::Gone)?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// A thread's state, and the process's parent, as /proc has them.
fn stat(pid: u32, thread: u32) -> Option<(String, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).ok()?;
    // Behind the name, which may have anything in it.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned);
    Some((fields.next()?, fields.next()?))
}

/// Whether a thread has ended, reaped or not.
fn is_dead(pid: u32, thread: u32) -> bool {
    stat(pid, thread).is_none_or(|(state, _)| matches!(state.as_str(), "Z" | "X"))
}

/// Takes notice of the end of a thread that was killed while it was traced: it doesn't go before.
fn reap(thread: u32) {
    let mut status = 0;
    // SAFETY: `status` is live.
    while unsafe { libc::waitpid(thread.cast_signed(), &mut status, libc::__WALL) } > 0
        && libc::WIFSTOPPED(status)
    {}
}

/// The signal whose delivery a stopped thread waits for; 0 for any other stop.
fn pending_signal(thread: u32) -> usize {
    // SAFETY: zeroes are a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is live.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, thread, 0usize, &raw mut info) };
    // The stop that was asked for, and one of the whole group, have the event in the upper bits.
    let is_event = info.si_code >> 8 == libc::PTRACE_EVENT_STOP;
    if result < 0 || is_event { 0 } else { info.si_signo as usize }
}

fn request(request: libc::c_uint, thread: u32, data: usize) -> io::Result<()> {
    // SAFETY: these requests take numbers.
    match unsafe { libc::ptrace(request, thread, 0usize, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
