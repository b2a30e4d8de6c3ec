//! A thread that is traced: stopped, looked at, made to run, let go.
//!
//! Threads are seized, never attached to: no signal is sent, and a process that was stopped stays so.
//!
//! # Safety
//! `ptrace` on threads that this thread traces, with structures of the size that the request has. What a tracee is made
//! to do is the caller's business.

use super::native::Registers;
use std::io;
use std::time::{Duration, Instant};

/// Options of [`Tracee::seize`]: system calls stop with a mark, and threads that are made are traced too.
pub(crate) const WORKING: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;

const GET_SIGNAL_MASK: libc::c_uint = 0x420a;
const SET_SIGNAL_MASK: libc::c_uint = 0x420b;
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
}

fn request(request: libc::c_uint, tid: i32, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: callers pass what the request takes: numbers, or structures that live for the call.
    match unsafe { libc::ptrace(request, tid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

impl Tracee {
    /// Begins to trace a thread, which runs on.
    pub(crate) fn seize(tid: i32, options: i32) -> io::Result<Self> {
        request(libc::PTRACE_SEIZE, tid, 0, options as usize)?;
        Ok(Self { tid, signal: 0 })
    }

    /// A thread that was made by one that is traced, and is traced for that.
    pub(crate) fn born(tid: i32) -> Self {
        Self { tid, signal: 0 }
    }

    /// Gives it other options, while it is stopped.
    pub(crate) fn set_options(&self, options: i32) -> io::Result<()> {
        request(libc::PTRACE_SETOPTIONS, self.tid, 0, options as usize).map(drop)
    }

    /// Asks it to stop.
    pub(crate) fn interrupt(&self) -> io::Result<()> {
        request(libc::PTRACE_INTERRUPT, self.tid, 0, 0).map(drop)
    }

    /// Whether it has stopped, and why.
    pub(crate) fn stopped(&mut self) -> Option<Stop> {
        let mut status = 0;
        // SAFETY: `status` is live.
        match unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL | libc::WNOHANG) } {
            0 => return None,
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => return None,
            -1 => return Some(Stop::Ended),
            _ if !libc::WIFSTOPPED(status) => return Some(Stop::Ended),
            _ => {}
        }
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
        let mut turns = 0u32;
        loop {
            if let Some(stop) = self.stopped() {
                return Some(stop);
            }
            if Instant::now() > deadline {
                return None;
            }
            turns += 1;
            match turns {
                0..50 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(20)),
            }
        }
    }

    /// Whether it stopped where a signal was about to be delivered.
    pub(crate) fn gets_signal(&self) -> bool {
        self.signal != 0
    }

    /// The registers, while it is stopped.
    pub(crate) fn registers(&self) -> io::Result<Registers> {
        let mut registers = Registers::default();
        request(libc::PTRACE_GETREGS, self.tid, 0, registers.as_mut_ptr().addr())?;
        Ok(registers)
    }

    /// Gives it other registers.
    pub(crate) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        request(libc::PTRACE_SETREGS, self.tid, 0, registers.as_ptr().addr()).map(drop)
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

    /// The id, as we call it, of the thread that it has just made.
    pub(crate) fn child(&self) -> io::Result<i32> {
        let mut id: libc::c_ulong = 0;
        request(libc::PTRACE_GETEVENTMSG, self.tid, 0, (&raw mut id).addr())?;
        Ok(id as i32)
    }

    /// Lets it run on.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        request(libc::PTRACE_CONT, self.tid, 0, 0).map(drop)
    }

    /// Lets it run on to the next beginning or end of a system call.
    pub(crate) fn go_to_system_call(&self) -> io::Result<()> {
        request(libc::PTRACE_SYSCALL, self.tid, 0, 0).map(drop)
    }

    /// Ends tracing it, while it is stopped: it goes on as if nothing had been.
    pub(crate) fn let_go(self) {
        // One that is gone by now needs nothing.
        let _ = request(libc::PTRACE_DETACH, self.tid, 0, self.signal as usize);
    }
}
