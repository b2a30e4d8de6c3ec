//! Waiting for PROGRAM, and for what it leaves behind.
//!
//! # Safety
//! System calls on live values.

use super::process::cpu_ns;
use super::signals::stop_was_asked_for;
use super::standing::stop_with;
use std::ffi::c_int;
use std::io;

/// Waits for the child's end and returns its status as `waitpid` gives it, and its processor time in nanoseconds.
pub(crate) fn reap(pid: libc::pid_t) -> (c_int, u64) {
    let mut status = 0;
    let mut cpu = 0;
    loop {
        // It can be asked how long it ran until it is reaped.
        match next_change(pid, libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT) {
            // It stands still for a look at its memory, and goes on by itself: that is another thread's business.
            Some((libc::CLD_TRAPPED, _)) => {
                std::thread::sleep(std::time::Duration::from_millis(1));
                continue;
            }
            Some((libc::CLD_STOPPED, _)) => {
                // It may have been continued, and stopped anew, since.
                let stop = next_change(pid, libc::WSTOPPED | libc::WNOHANG);
                if let Some((libc::CLD_STOPPED, signal)) = stop {
                    stop_with(pid, signal);
                }
                continue;
            }
            Some(_) => cpu = cpu_ns(pid.unsigned_abs()).unwrap_or(cpu),
            None => {}
        }
        // SAFETY: `status` is live.
        match unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } {
            0 => {}
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            // It may have been stopped for a look in between.
            _ if libc::WIFSTOPPED(status) => {}
            _ => return (status, cpu),
        }
    }
}

/// Waits for a change of a child's state; its code, one of CLD_*, and its status: a signal, where one stopped it. `None` if
/// there was none, or no such child.
fn next_change(pid: libc::pid_t, events: c_int) -> Option<(c_int, c_int)> {
    // SAFETY: fills in a live structure.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let found = libc::waitid(libc::P_PID, pid.unsigned_abs(), &mut info, events) == 0;
        (found && info.si_pid() != 0).then(|| (info.si_code, info.si_status()))
    }
}

/// Whether PROGRAM was continued since this was asked last: it goes on, or was stopped anew and nobody has taken notice yet.
pub(crate) fn was_continued(pid: libc::pid_t) -> bool {
    next_change(pid, libc::WCONTINUED | libc::WNOHANG).is_some()
        || matches!(
            next_change(pid, libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT),
            Some((libc::CLD_STOPPED, _))
        )
}

/// Makes orphans among PROGRAM's descendants children of this process, so that their end can be waited for.
pub(crate) fn adopt_orphans() {
    // SAFETY: changes who this process's descendants fall to.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    }
}

/// Waits until no child is left, or a signal says that nobody wants to wait.
pub(crate) fn reap_all() {
    while !stop_was_asked_for() {
        let mut status = 0;
        // SAFETY: `status` is live.
        match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
            0 => std::thread::sleep(std::time::Duration::from_millis(10)),
            -1 if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) => return,
            _ => {}
        }
    }
}
