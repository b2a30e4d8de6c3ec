//! A bound for system calls that wait: a timer that interrupts this thread's.
//!
//! Who waits in the kernel is woken at once by what it waits for, and runs next. One that looks again and again has either to
//! wait for its turn among all that want a processor, each time, or to keep one from them.
//!
//! # Safety
//! The timer's signal comes to the thread that made it, and the handler does nothing. No timer is used after it was deleted.

use std::mem::zeroed;
use std::ptr;
use std::time::Duration;

/// How often it rings once the time is over: a call that was about to begin is interrupted the next time.
const AGAIN: Duration = Duration::from_millis(10);

thread_local! {
    static OWN: Option<Timer> = Timer::new();
}

struct Timer(libc::timer_t);

impl Timer {
    fn new() -> Option<Self> {
        // No program sends it, as it may SIGALRM, whose timer outlives an exec.
        let signal = libc::SIGRTMAX() - 1;
        extern "C" fn nothing(_: libc::c_int) {}
        let mut timer = ptr::null_mut();
        // SAFETY: structures that live for the calls, of which zeros are valid values.
        let made = unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_notify_thread_id = libc::gettid();
            let mut rings: libc::sigset_t = zeroed();
            libc::sigaddset(&mut rings, signal);
            libc::sigaction(signal, &action, ptr::null_mut()) == 0
                && libc::pthread_sigmask(libc::SIG_UNBLOCK, &rings, ptr::null_mut()) == 0
                && libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) == 0
        };
        made.then_some(Self(timer))
    }

    fn set(&self, after: Duration, again: Duration) -> bool {
        let time = |time: Duration| libc::timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let times = libc::itimerspec { it_value: time(after), it_interval: time(again) };
        // SAFETY: the timer is this thread's own and is there.
        unsafe { libc::timer_settime(self.0, 0, &times, ptr::null_mut()) == 0 }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: nobody has it after this.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Makes a call that waits, and is interrupted after some time: at once if that is none. False if there is no timer to be had, and
/// nothing was called.
pub(super) fn interrupted_after(time: Duration, call: impl FnOnce()) -> bool {
    OWN.with(|timer| {
        let Some(timer) = timer else { return false };
        if !timer.set(time.max(Duration::from_nanos(1)), AGAIN) {
            return false;
        }
        call();
        timer.set(Duration::ZERO, Duration::ZERO);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_call_that_would_wait_for_ever_is_interrupted_each_time() {
        for time in [0, 1, 30] {
            let time = Duration::from_millis(time);
            let begun = Instant::now();
            // SAFETY: no arguments to go wrong.
            assert!(interrupted_after(time, || unsafe {
                libc::pause();
            }));
            assert!(begun.elapsed() >= time);
        }
    }
}
