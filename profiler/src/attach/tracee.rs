//! A thread that is traced: stopped, looked at, made to run, let go.
//!
//! Threads are seized, never attached to: no signal is sent, and a process that was stopped stays so.
//!
//! # Safety
//! `ptrace` on threads that this thread traces, with structures of the size that the request has. What a tracee is made
//! to do is the caller's business.

use super::alarm;
use super::native::{Registers, UnderWay};
use std::io;
use std::time::{Duration, Instant};

/// Options of [`Tracee::seize`]: system calls stop with a mark, and threads that are made are traced too.
pub(crate) const WORKING: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;

const GET_SIGNAL_MASK: libc::c_uint = 0x420a;
const SET_SIGNAL_MASK: libc::c_uint = 0x420b;
/// PTRACE_GET_RSEQ_CONFIGURATION, with what it fills in (linux/ptrace.h).
const GET_RESTARTABLE: libc::c_uint = 0x420f;

#[repr(C)]
#[derive(Default)]
struct Restartable {
    area: u64,
    size: u32,
    signature: u32,
    flags: u32,
    _pad: u32,
}

const EVENT_STOP: i32 = 128;
/// The mark of [`libc::PTRACE_O_TRACESYSGOOD`].
const SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;

/// Why a thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// At our word, or because its process is stopped.
    Asked,
    /// Before or after a system call.
    SystemCall,
    /// It made another thread.
    Clone,
    /// A signal is about to be delivered.
    Signal(i32),
    /// It isn't there any more.
    Ended,
}

/// A thread that this thread traces.
#[derive(Debug)]
pub(crate) struct Tracee {
    pub(crate) tid: i32,
    /// A signal that it was about to get, which it gets when it is let go.
    signal: i32,
    /// It was seen to stop, and has not been told to go on since.
    stands: bool,
    /// It stopped because its process is stopped.
    is_stopped: bool,
    /// What it was waiting for when it was told to stop.
    under_way: UnderWay,
}

/// The most bytes that a set of registers may have.
const MOST_BYTES: usize = 16 << 10;

fn request(request: libc::c_uint, tid: i32, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: callers pass what the request takes: numbers, or structures that live for the call.
    match unsafe { libc::ptrace(request, tid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Whether a filter for system calls forbids this process `ptrace`. The kernel itself looks for the thread first, and there is none of
/// this number (ptrace(2), ESRCH).
pub(crate) fn is_filtered() -> bool {
    request(libc::PTRACE_SEIZE, i32::MAX, 0, 0).is_err_and(|error| error.raw_os_error() != Some(libc::ESRCH))
}

impl Tracee {
    /// Begins to trace a thread, which runs on.
    pub(crate) fn seize(tid: i32, options: i32) -> io::Result<Self> {
        request(libc::PTRACE_SEIZE, tid, 0, options as usize)?;
        Ok(Self::born(tid))
    }

    /// A thread that was made by one that is traced, and is traced for that.
    pub(crate) fn born(tid: i32) -> Self {
        Self { tid, signal: 0, stands: false, is_stopped: false, under_way: UnderWay::NOTHING }
    }

    /// The same thread, of which is known what it waited in when it was told to stop.
    pub(crate) fn waiting_in(self, under_way: UnderWay) -> Self {
        Self { under_way, ..self }
    }

    /// Gives it other options, while it is stopped.
    pub(crate) fn set_options(&self, options: i32) -> io::Result<()> {
        request(libc::PTRACE_SETOPTIONS, self.tid, 0, options as usize).map(drop)
    }

    /// Asks it to stop.
    pub(crate) fn interrupt(&mut self) -> io::Result<()> {
        self.under_way = UnderWay::of(self.tid);
        request(libc::PTRACE_INTERRUPT, self.tid, 0, 0).map(drop)
    }

    /// Whether it has stopped, and why.
    pub(crate) fn stopped(&mut self) -> Option<Stop> {
        let mut status = 0;
        self.stands = false;
        // SAFETY: `status` is live.
        match unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL | libc::WNOHANG) } {
            0 => return None,
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => return None,
            -1 => return Some(Stop::Ended),
            _ if !libc::WIFSTOPPED(status) => return Some(Stop::Ended),
            _ => {}
        }
        self.stands = true;
        let is_stop =
            [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&libc::WSTOPSIG(status));
        self.is_stopped = status >> 16 == EVENT_STOP && is_stop;
        Some(match (status >> 16, libc::WSTOPSIG(status)) {
            (EVENT_STOP, _) => Stop::Asked,
            (libc::PTRACE_EVENT_CLONE, _) => Stop::Clone,
            (0, SYSTEM_CALL) => Stop::SystemCall,
            (_, signal) => {
                self.signal = signal;
                Stop::Signal(signal)
            }
        })
    }

    /// Waits until it stops. `None` if it doesn't until then.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> Option<Stop> {
        loop {
            if let Some(stop) = self.stopped() {
                return Some(stop);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let wait = || {
                let wanted = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
                // SAFETY: zeros are a valid value, which lives for the call.
                unsafe {
                    let mut info: libc::siginfo_t = std::mem::zeroed();
                    libc::waitid(libc::P_PID, self.tid.cast_unsigned(), &mut info, wanted);
                }
            };
            if !alarm::interrupted_after(left, wait) {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    /// Whether it stands because its process is stopped: it must not run.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether it stopped where a signal was about to be delivered.
    pub(crate) fn gets_signal(&self) -> bool {
        self.signal != 0
    }

    /// Whether it was seen to stop and stands still: such a thread says nothing more.
    pub(crate) fn stands(&self) -> bool {
        self.stands
    }

    /// The signal that it is about to get, or 0.
    pub(crate) fn next_signal(&self) -> i32 {
        self.signal
    }

    /// The signal that it was about to get, which it gets from the caller now, or not at all.
    pub(crate) fn take_signal(&mut self) -> i32 {
        std::mem::take(&mut self.signal)
    }

    /// The registers, while it is stopped.
    pub(crate) fn registers(&self) -> io::Result<Registers> {
        Registers::of(self, self.under_way)
    }

    /// Gives it other registers.
    pub(crate) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        registers.give(self)
    }

    /// Asks the kernel for something of it, with numbers and with addresses of structures that the request takes.
    pub(super) fn request(&self, request: libc::c_uint, address: usize, data: usize) -> io::Result<i64> {
        self::request(request, self.tid, address, data)
    }

    /// A set of its registers, in the kernel's form.
    pub(super) fn register_set(&self, set: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0u8; MOST_BYTES];
        let mut room = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        self.request(libc::PTRACE_GETREGSET, set as usize, (&raw mut room).addr())?;
        bytes.truncate(room.iov_len);
        Ok(bytes)
    }

    /// The signals that it has blocked.
    pub(crate) fn signal_mask(&self) -> io::Result<u64> {
        let mut mask = 0u64;
        request(GET_SIGNAL_MASK, self.tid, 8, (&raw mut mask).addr())?;
        Ok(mask)
    }

    /// Blocks these signals and no others.
    pub(crate) fn set_signal_mask(&self, mask: u64) -> io::Result<()> {
        request(SET_SIGNAL_MASK, self.tid, 8, (&raw const mask).addr()).map(drop)
    }

    /// Where its area for restartable sequences lies. Kernels before 5.13 don't say.
    pub(crate) fn restartable(&self) -> Option<u64> {
        let mut facts = Restartable::default();
        request(GET_RESTARTABLE, self.tid, size_of::<Restartable>(), (&raw mut facts).addr()).ok()?;
        (facts.area != 0).then_some(facts.area)
    }

    /// The id, as we call it, of the thread that it has just made.
    pub(crate) fn child(&self) -> io::Result<i32> {
        let mut id: libc::c_ulong = 0;
        request(libc::PTRACE_GETEVENTMSG, self.tid, 0, (&raw mut id).addr())?;
        Ok(id as i32)
    }

    /// Lets it run on. A signal that it was about to get stays noted.
    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        self.resume(libc::PTRACE_CONT, 0)
    }

    /// Lets it run on, and get the signal that it was about to. Where it stands at a system call's end the kernel sends that
    /// anew.
    pub(crate) fn go_on_with_signal(&mut self) -> io::Result<()> {
        let signal = self.take_signal();
        self.resume(libc::PTRACE_CONT, signal)
    }

    /// Lets it run on to the next beginning or end of a system call.
    pub(crate) fn go_to_system_call(&mut self) -> io::Result<()> {
        self.resume(libc::PTRACE_SYSCALL, 0)
    }

    fn resume(&mut self, how: libc::c_uint, signal: i32) -> io::Result<()> {
        request(how, self.tid, 0, signal as usize)?;
        self.stands = false;
        Ok(())
    }

    /// Ends tracing it, while it is stopped: it goes on as if nothing had been.
    pub(crate) fn let_go(self) {
        // One that is gone by now needs nothing.
        let _ = request(libc::PTRACE_DETACH, self.tid, 0, self.signal as usize);
    }
}

/// Sends a signal to a thread of a process.
pub(crate) fn send(pid: u32, tid: i32, signal: i32) {
    // SAFETY: numbers. A thread that is gone by now needs nothing.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
}
