//! When a signal stops PROGRAM, this process stops by the same, so that whoever waits for it sees what he would see of PROGRAM:
//! a shell gets its terminal back. When it is continued, PROGRAM is (see `signals`).
//!
//! While this process stands still nothing is recorded, and who has no room for his events waits. So it doesn't stop where a
//! descendant of PROGRAM runs on, unless the terminal is a shell's to have back. And PROGRAM may be continued, or killed, by
//! somebody who knows nothing of grapnel: a process beside looks whether it stands still, and continues this one when it
//! doesn't.
//!
//! # Safety
//! System calls on live values. The child of the fork makes system calls only.

use super::relatives::{Relative, descendant_runs};
use super::signals::STOPS;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

/// This process stands still, or is about to.
static STANDING: AtomicBool = AtomicBool::new(false);

/// Who continues this process when PROGRAM goes on; 0 before there was anyone.
static WAKER: AtomicI32 = AtomicI32::new(0);

/// How often it looks.
const EVERY: libc::c_long = 20_000_000;

/// How often, and how far apart, it is looked whether PROGRAM's descendants stop with it.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// PROGRAM was stopped by this signal. Returns when both have been continued, or at once where this process does not stop.
pub(crate) fn stop_with(program: libc::pid_t, signal: c_int) {
    if !is_foreground_job() && !family_stands(program) {
        return;
    }
    let Some(waker) = start_waker(program) else { return };
    WAKER.store(waker, Ordering::Relaxed);
    STANDING.store(true, Ordering::Release);
    // Whoever continued it in between thinks that all is going on.
    if is_stopped(program) {
        stop_by(signal);
    }
    // The thread that takes signals decides whether PROGRAM has to be continued. Where this process could not be stopped (the
    // kernel stops no group by TSTP that nobody could continue) there is nothing to decide.
    for _ in 0..100 {
        if !STANDING.load(Ordering::Acquire) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    STANDING.store(false, Ordering::Release);
    // SAFETY: a child of ours that nobody else waits for until the end of PROGRAM.
    unsafe {
        libc::kill(waker, libc::SIGKILL);
        libc::waitpid(waker, std::ptr::null_mut(), 0);
    }
}

/// What has to be done on the signal that continues this process is done.
pub(crate) fn goes_on() {
    STANDING.store(false, Ordering::Release);
}

/// Whether a process is the one that continues this one because PROGRAM goes on.
pub(crate) fn is_waker(pid: libc::pid_t) -> bool {
    pid != 0 && WAKER.load(Ordering::Relaxed) == pid
}

/// Whether a shell waits for its terminal.
fn is_foreground_job() -> bool {
    // SAFETY: asks about a terminal, by a descriptor of our own.
    unsafe {
        let terminal = libc::open(c"/dev/tty".as_ptr(), libc::O_RDONLY | libc::O_NOCTTY | libc::O_CLOEXEC);
        if terminal < 0 {
            return false;
        }
        let is_job = libc::tcgetpgrp(terminal) == libc::getpgrp() && libc::getsid(0) != libc::getpgrp();
        libc::close(terminal);
        is_job
    }
}

/// Whether PROGRAM and all its descendants stand still. A signal for all of them reaches one after the other.
fn family_stands(program: libc::pid_t) -> bool {
    for look in 0..LOOKS {
        if !is_stopped(program) {
            return false;
        }
        if !descendant_runs(program) {
            return true;
        }
        if look + 1 < LOOKS {
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }
    false
}

fn is_stopped(pid: libc::pid_t) -> bool {
    Relative::of(pid).is_some_and(Relative::is_stopped)
}

/// Stops this process as the signal stopped PROGRAM.
fn stop_by(signal: c_int) {
    // SAFETY: signals to this process, and this thread's mask; the set is initialised before use.
    unsafe {
        if !STOPS.contains(&signal) {
            libc::kill(libc::getpid(), libc::SIGSTOP);
            return;
        }
        libc::signal(signal, libc::SIG_DFL);
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        // To this thread: the one that takes signals doesn't see it.
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// Starts the process that continues this one when PROGRAM does not stand still any more. `None`: there can't be one.
fn start_waker(program: libc::pid_t) -> Option<libc::pid_t> {
    // SAFETY: see the module's header.
    unsafe {
        let own = libc::getpid();
        match libc::fork() {
            -1 => None,
            0 => wake(own, program),
            waker => Some(waker),
        }
    }
}

/// The waker's work, until it is killed.
fn wake(own: libc::pid_t, program: libc::pid_t) -> ! {
    // SAFETY: see the module's header.
    unsafe {
        // A session of its own: what is for grapnel's group does not reach it. It ends with grapnel, and keeps no file open.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"waker".as_ptr());
        libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
        while libc::getppid() == own {
            // Only when it stands: a signal that comes before would be lost.
            if !is_stopped(program) && is_stopped(own) {
                libc::kill(own, libc::SIGCONT);
            }
            let pause = libc::timespec { tv_sec: 0, tv_nsec: EVERY };
            libc::nanosleep(&pause, std::ptr::null_mut());
        }
        libc::_exit(0)
    }
}
