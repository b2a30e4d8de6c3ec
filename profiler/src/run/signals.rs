//! Signals while PROGRAM runs: which are passed on to it, and how this process ends like it.
//!
//! # Safety
//! System calls on live structures, initialised before use.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

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

static STOP: AtomicBool = AtomicBool::new(false);

/// Whether a signal came after PROGRAM's end: whoever sent it does not want to wait for its children.
pub(crate) fn stop_was_asked_for() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// What grapnel does on a signal of its own.
pub(crate) struct OnSignal {
    pub(crate) number: c_int,
    pub(crate) work: Box<dyn Fn() + Send>,
}

/// Passes on to `pid` what others send to grapnel, until PROGRAM is over; not the signal that is for grapnel. A thread's
/// work.
pub(crate) fn forward_signals(pid: libc::pid_t, own: Option<OnSignal>) {
    // SAFETY: the set is initialised before use; `info` is written before it is read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in FORWARDED {
            libc::sigaddset(&mut set, signal);
        }
        loop {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(&set, &mut info);
            if signal > 0 && OVER.load(Ordering::Relaxed) {
                STOP.store(true, Ordering::Relaxed);
            } else if let Some(own) = own.as_ref().filter(|own| own.number == signal) {
                (own.work)();
            } else if signal > 0 && !reached_program_too(signal, &info) {
                libc::kill(pid, signal);
            }
        }
    }
}

/// Whether PROGRAM got the signal by itself: the terminal's come from the kernel, to the whole foreground group; an
/// interrupt from a process of our own group was for the group, too, as far as one can tell, and must not come twice.
fn reached_program_too(signal: c_int, info: &libc::siginfo_t) -> bool {
    if info.si_code == libc::SI_KERNEL {
        return true;
    }
    // SAFETY: asks about process groups; the signal was sent by a process.
    let of_our_group = unsafe { libc::getpgid(info.si_pid()) == libc::getpgrp() };
    of_our_group && [libc::SIGINT, libc::SIGQUIT].contains(&signal)
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
        // Raw: libc keeps two signals to itself.
        let set = 1u64 << (signal - 1);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const set, 0, 8);
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal);
    }
    std::process::exit(128 + signal)
}
