//! All threads of a process, stopped where they are, and their registers.
//!
//! By ptrace, without a signal: PTRACE_SEIZE and PTRACE_INTERRUPT are seen by nobody but the tracer, and a system call that is
//! interrupted goes on afterwards. No notice is waited for: whether a thread stands still is known when its registers can be
//! read. So whoever waits for children in this process can't take a notice away, and only has to leave those alone that
//! aren't of a stop by a signal (see `run::wait`).
//!
//! A thread of its own traces, for as long as the process stands. Only what stands still can be let go of; what was seized
//! and doesn't (it waits in the kernel, or was killed and is to be reaped) would have to be waited for, perhaps for ever. So
//! nothing is: when the thread ends, the kernel lets go of all that it traced, whatever state that is in.
//!
//! # Safety
//! ptrace requests on thread ids that this thread has seized, with live structures of the length that the request is
//! told; a copy of another process's memory into a live buffer.

use super::registers::{self, UnderWay, Values};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long threads may take to stand still: one in the middle of a page fault from a slow disk takes its time.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(30);
/// How long a thread of ours that has nothing more to do may take to be gone.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

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
    /// There is no thread to do it.
    #[error("no thread can be started to stop the process: {0}")]
    Thread(io::Error),
    /// A fault of our own.
    #[error("a fault in grapnel itself")]
    Fault,
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
    threads: Vec<Thread>,
    /// What the tracing thread waits for the end of.
    hold: Option<SyncSender<()>>,
    tracing: Option<JoinHandle<()>>,
    /// The tracing thread, in /proc.
    task: PathBuf,
}

impl Stopped {
    /// Stops a process.
    ///
    /// # Errors
    /// When it can't be; its threads go on then.
    pub(crate) fn stop(pid: u32) -> Result<Self, StopError> {
        let (tell, told) = sync_channel(1);
        let (hold, held) = sync_channel(1);
        let work = move || trace(pid, &tell, &held);
        let tracing =
            std::thread::Builder::new().name("tracer".into()).spawn(work).map_err(StopError::Thread)?;
        let mut stopped =
            Self { threads: Vec::new(), hold: Some(hold), tracing: Some(tracing), task: PathBuf::new() };
        let (task, threads) = told.recv().map_err(|_| StopError::Fault)?;
        stopped.task = task;
        stopped.threads = threads?;
        Ok(stopped)
    }

    /// Its threads.
    pub(crate) fn threads(&self) -> &[Thread] {
        &self.threads
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.hold.take());
        if let Some(tracing) = self.tracing.take() {
            drop(tracing.join());
        }
        // A thread can be joined before the kernel has ended it, and let go of what it traced: others may trace that next.
        let start = Instant::now();
        while self.task.exists() && start.elapsed() < LAST_PATIENCE {
            std::thread::sleep(PAUSE);
        }
    }
}

/// The tracing thread's work.
fn trace(pid: u32, tell: &SyncSender<(PathBuf, Result<Vec<Thread>, StopError>)>, held: &Receiver<()>) {
    let own = std::fs::read_link("/proc/thread-self").map(|own| PathBuf::from("/proc").join(own));
    let mut tracer = Tracer { pid, seized: Vec::new(), threads: Vec::new() };
    let result = tracer.stop();
    let threads = std::mem::take(&mut tracer.threads);
    let is_stopped = result.is_ok();
    let is_heard = tell.send((own.unwrap_or_default(), result.map(|()| threads))).is_ok();
    if is_stopped && is_heard {
        // Nothing is ever sent: the other end goes.
        let _ = held.recv();
    }
    tracer.let_go();
}

/// The side of the tracing thread.
struct Tracer {
    pid: u32,
    /// Each with what it waited in when it was told to stop.
    seized: Vec<(u32, UnderWay)>,
    threads: Vec<Thread>,
}

impl Tracer {
    fn stop(&mut self) -> Result<(), StopError> {
        let start = Instant::now();
        let mut waited = 0;
        // Threads that run may start others.
        while self.seize_new()? {
            for at in waited..self.seized.len() {
                self.wait_for(self.seized[at].0, start)?;
            }
            waited = self.seized.len();
        }
        if self.threads.is_empty() { Err(StopError::Gone) } else { Ok(()) }
    }

    /// Seizes threads that were not there before. False when there are none.
    fn seize_new(&mut self) -> Result<bool, StopError> {
        let mut any = false;
        for thread in ids(self.pid)? {
            if self.seized.iter().any(|&(seized, _)| seized == thread) {
                continue;
            }
            match request(libc::PTRACE_SEIZE, thread, 0) {
                Ok(()) => {
                    any = true;
                    self.seized.push((thread, UnderWay::of(thread.cast_signed())));
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
    /// Lets those go that stand still. The others are let go of when this thread ends.
    fn let_go(&self) {
        for &(thread, under_way) in &self.seized {
            // A signal that it was about to get when it stopped.
            let signal = pending_signal(thread);
            if signal == 0 {
                registers::begin_call_anew(thread, under_way);
            }
            let _ = request(libc::PTRACE_DETACH, thread, signal);
        }
    }
}

/// Copies bytes from a process's memory, and says how many there are before the first that can't be read this way. Twice as
/// fast as its file in /proc, which has more rights.
pub(crate) fn copy(pid: u32, address: u64, bytes: &mut [u8]) -> usize {
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

/// Whether a thread has ended, reaped or not.
fn is_dead(pid: u32, thread: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")) else { return true };
    // Behind the name, which may have anything in it.
    stat.rsplit_once(") ").is_none_or(|(_, fields)| fields.starts_with(['Z', 'X']))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    /// Threads that are traced are gone only when the tracer lets them go, and the first one's end is told after that: who
    /// waited for it first would wait for ever.
    #[test]
    fn a_process_that_is_killed_while_it_stands_is_gone() {
        let script = "import threading, time\n\
            for n in range(3): threading.Thread(target=time.sleep, args=(60,)).start()\n\
            print(threading.active_count(), flush=True)";
        let shell = "/usr/bin/python3 -c \"$0\" & echo $!; wait $!; echo $?";
        let mut command = Command::new("/bin/sh");
        let mut parent = command.args(["-c", shell, script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines().map(Result::unwrap);
        let pid = lines.next().unwrap().parse().unwrap();
        assert_eq!(lines.next().as_deref(), Some("4"));
        let looked = std::thread::spawn(move || {
            let stopped = Stopped::stop(pid).unwrap();
            assert_eq!(stopped.threads().len(), 4);
            drop(stopped);
            // Whoever stops it next finds nobody else tracing it.
            let stopped = Stopped::stop(pid).unwrap();
            let process = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
            drop(stopped);
            assert!(matches!(Stopped::stop(pid), Err(StopError::Gone)));
        });
        let start = Instant::now();
        while !looked.is_finished() {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody lets it go");
            std::thread::sleep(Duration::from_millis(5));
        }
        looked.join().unwrap();
        assert_eq!(lines.next().as_deref(), Some("137"));
        parent.wait().unwrap();
    }
}
