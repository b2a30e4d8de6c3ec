//! The drain's share of the processors.
//!
//! The system gives each thread that has something to do as much of them as any other. Where threads of a program write more
//! than the drain takes in its share, their rings fill, all of them wait for it at a time, and processors stand idle meanwhile.
//! So while some wait, the drain goes before them: where the system allows it to whoever runs grapnel (root, `CAP_SYS_NICE`,
//! `RLIMIT_NICE` for all of the steps; not a container's root without that capability). Nobody else's priority is touched, though
//! others may get less; and it counts only among threads of one session or control group.

use rustix::process::{getpriority_process, setpriority_process};

/// How much nicer all others are then.
const STEPS: i32 = 10;

/// The calling thread has priority until this is dropped.
#[derive(Debug)]
pub(super) struct Raised {
    before: i32,
}

impl Raised {
    /// `None` where the system doesn't allow it.
    pub(super) fn now() -> Option<Self> {
        // Without a number: of the calling thread, on Linux.
        let before = getpriority_process(None).ok()?;
        setpriority_process(None, before - STEPS).ok().map(|()| Self { before })
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // To be nicer is always allowed.
        let _ = setpriority_process(None, self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn niceness() -> i32 {
        getpriority_process(None).expect("a niceness")
    }

    #[test]
    fn a_thread_goes_first_for_a_while_and_no_other_does() {
        let before = niceness();
        let raised = Raised::now();
        let expected = if raised.is_some() { (before - STEPS).max(-20) } else { before };
        assert_eq!(niceness(), expected);
        let others = std::fs::read_to_string(format!("/proc/self/task/{}/stat", std::process::id()));
        let stat = others.expect("the first thread");
        // The niceness is the nineteenth field, the seventeenth behind the name.
        let of_first = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(16)?.parse().ok());
        assert_eq!(of_first, Some(before));
        drop(raised);
        assert_eq!(niceness(), before);
    }
}
