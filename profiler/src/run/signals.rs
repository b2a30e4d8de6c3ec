//! Signals while PROGRAM runs: which are passed on to it, and how this process ends like it.
//!
//! # Safety
//! System calls on live structures, initialised before use.

use super::relatives::descends_from;
use super::standing::{goes_on, is_waker};
use super::wait::was_continued;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signals that stay with this process: two that nobody can take, those of its own faults and children, and that of a pipe
/// without a reader. All others are PROGRAM's business. (libc keeps two to itself besides, and does not let them be sent.)
const KEPT: [c_int; 10] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGCHLD,
    libc::SIGPIPE,
];

/// Those by which a terminal stops a job.
pub(crate) const STOPS: [c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Signals that end nothing: whoever sends them does not want to be rid of anybody.
const HARMLESS: [c_int; 3] = [libc::SIGWINCH, libc::SIGURG, libc::SIGCONT];

fn forwarded() -> libc::sigset_t {
    // SAFETY: the set is initialised before use.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        for signal in KEPT {
            libc::sigdelset(&mut set, signal);
        }
        set
    }
}

/// Blocks what is PROGRAM's business, in this thread and all that it starts, and returns the mask as it was.
pub(crate) fn block_forwarded() -> libc::sigset_t {
    // SAFETY: the sets are initialised before use.
    unsafe {
        let mut old = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, &forwarded(), &mut old);
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

/// Passes on to `program` what others send to grapnel, until PROGRAM is over; not the signal that is for grapnel. A thread's
/// work.
pub(crate) fn forward_signals(program: libc::pid_t, own: Option<OnSignal>) {
    let set = forwarded();
    loop {
        // SAFETY: the set is initialised; `info` is written before it is read.
        let (signal, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::sigwaitinfo(&set, &mut info), info)
        };
        if signal <= 0 {
            continue;
        }
        if OVER.load(Ordering::Relaxed) {
            after_the_end(signal);
        } else if let Some(own) = own.as_ref().filter(|own| own.number == signal) {
            (own.work)();
        } else if signal == libc::SIGCONT {
            pass_on_continuation(program, &info);
        } else if is_for_program_alone(signal, &info, program) {
            pass_on(program, signal, &info);
        }
    }
}

/// What a signal does to this process when PROGRAM is over, and it waits for others or has something left to write.
fn after_the_end(signal: c_int) {
    if STOPS.contains(&signal) {
        // SAFETY: stops this process, until it is continued.
        unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
    } else if !HARMLESS.contains(&signal) {
        STOP.store(true, Ordering::Relaxed);
    }
}

/// Whether PROGRAM has to be given a signal: it did not get it by itself, as far as one can tell, and did not send it.
fn is_for_program_alone(signal: c_int, info: &libc::siginfo_t, program: libc::pid_t) -> bool {
    match info.si_code {
        libc::SI_KERNEL => is_for_this_process(signal) || (is_of_terminal(signal) && has_left_group(program)),
        libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL | libc::SI_MESGQ => {
            // SAFETY: these are sent by a process.
            is_from_elsewhere(signal, unsafe { info.si_pid() }, program)
        }
        // Of a descriptor or a timer: only what was there before exec can be meant, and that is PROGRAM's.
        _ => true,
    }
}

/// Whether the kernel meant this process in PROGRAM's place, not its group. A terminal's signals come to the whole foreground
/// group, but for its end, which the session's leader is told of; limits on time and on the size of files are this process's
/// own.
fn is_for_this_process(signal: c_int) -> bool {
    match signal {
        // SAFETY: asks about this process.
        libc::SIGHUP | libc::SIGCONT => unsafe { libc::getsid(0) == libc::getpid() },
        // A timer's that were pending when this process was started, and those of descriptors whose owner it became.
        libc::SIGALRM | libc::SIGVTALRM | libc::SIGPROF | libc::SIGIO | libc::SIGURG => true,
        _ => false,
    }
}

/// Whether it is one that the kernel sends to a terminal's foreground group.
fn is_of_terminal(signal: c_int) -> bool {
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP, libc::SIGWINCH].contains(&signal)
}

/// Whether PROGRAM went to a group of its own in this session. Without grapnel a shell would have made it the leader of its group, and it would still be
/// the terminal's.
fn has_left_group(program: libc::pid_t) -> bool {
    // SAFETY: asks about process groups and sessions.
    unsafe { libc::getpgid(program) == program && libc::getsid(program) == libc::getsid(0) }
}

/// Whether a process sent a signal that PROGRAM has to be given.
///
/// Nobody says whether a signal was sent to this process or to its group. What PROGRAM or a descendant of it sends was never
/// for PROGRAM by way of its parent: it was for the group, and reached PROGRAM, or for the parent. (A descendant that was
/// reaped before one looks is not known for one.) An interrupt from another process of our group was for the group, as with
/// a script that ends its jobs; but its other signals were for us: `kill PID` from a script without job control is more usual
/// than `kill 0`, and to come twice is better than not to come.
fn is_from_elsewhere(signal: c_int, sender: libc::pid_t, program: libc::pid_t) -> bool {
    // From outside of our namespace of process ids.
    if sender == 0 {
        return true;
    }
    // SAFETY: asks about this process, and about process groups.
    let (own, of_our_group) = unsafe { (libc::getpid(), libc::getpgid(sender) == libc::getpgrp()) };
    sender != own
        && !(of_our_group && [libc::SIGINT, libc::SIGQUIT].contains(&signal))
        && !descends_from(sender, program)
}

/// This process was continued, or told that it is when it never stopped. PROGRAM was continued by the same if that was for the
/// group.
fn pass_on_continuation(program: libc::pid_t, info: &libc::siginfo_t) {
    // SAFETY: of a signal that the kernel sent it is 0.
    let by_waker = info.si_code == libc::SI_USER && is_waker(unsafe { info.si_pid() });
    if !was_continued(program) && !by_waker && is_for_program_alone(libc::SIGCONT, info, program) {
        pass_on(program, libc::SIGCONT, info);
        // That was us.
        was_continued(program);
    }
    goes_on();
}

/// Gives PROGRAM a signal, with the value that sigqueue gave it and its sender. The kernel lets nobody else's `kill` be
/// imitated: then the sender is this process.
fn pass_on(program: libc::pid_t, signal: c_int, info: &libc::siginfo_t) {
    // SAFETY: the structure is live, and as the kernel wrote it.
    unsafe {
        let is_queued = info.si_code < 0 && info.si_code != libc::SI_TKILL;
        let queue = || libc::syscall(libc::SYS_rt_sigqueueinfo, program, signal, &raw const *info) == 0;
        if !(is_queued && queue()) {
            libc::kill(program, signal);
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
        // Raw: libc keeps two signals to itself.
        let set = 1u64 << (signal - 1);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const set, 0, 8);
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal);
    }
    std::process::exit(128 + signal)
}
