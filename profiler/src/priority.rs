//! This thread's share of the processors.
//!
//! The system allows a thread to be less nice than it was only to root, to who has `CAP_SYS_NICE` (a container's root often hasn't),
//! and to anybody as far as `RLIMIT_NICE` says. Nobody else's niceness is touched, though others may get less; and it counts only
//! among threads of one session or control group.

use rustix::process::{Resource, getpriority_process, getrlimit, setpriority_process};

/// The least nice that a thread can be.
pub(crate) const FIRST: i32 = -20;

/// The calling thread goes before others until this is dropped.
#[derive(Debug)]
pub(crate) struct Raised {
    before: i32,
}

impl Raised {
    /// Less nice by so many steps, or as many as are allowed. `None` if there are none.
    pub(crate) fn by(steps: i32) -> Option<Self> {
        // Without a number: of the calling thread, on Linux.
        let before = getpriority_process(None).ok()?;
        let wanted = before.saturating_sub(steps).max(FIRST);
        let raised = setpriority_process(None, wanted).is_ok()
            || allowed(getrlimit(Resource::Nice).current)
                .is_some_and(|least| least < before && setpriority_process(None, least).is_ok());
        raised.then_some(Self { before })
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // To be nicer is always allowed.
        let _ = setpriority_process(None, self.before);
    }
}

/// How little nice a thread may be by this `RLIMIT_NICE`, which counts from 20 down: setpriority(2). `None` for no limit, which says
/// nothing where the system has just refused.
fn allowed(limit: Option<u64>) -> Option<i32> {
    limit.map(|limit| 20 - limit.min(40) as i32)
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
        // Whether it can, asked in another way.
        let may = setpriority_process(None, before - 1).is_ok();
        setpriority_process(None, before).expect("as it was");
        let raised = Raised::by(10);
        assert_eq!(raised.is_some(), may);
        let during = niceness();
        assert!(if may { during < before } else { during == before }, "{before} {during}");
        let others = std::fs::read_to_string(format!("/proc/self/task/{}/stat", std::process::id()));
        let stat = others.expect("the first thread");
        // The niceness is the nineteenth field, the seventeenth behind the name.
        let of_first = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(16)?.parse().ok());
        assert_eq!(of_first, Some(before));
        drop(raised);
        assert_eq!(niceness(), before);
    }

    #[test]
    fn limits_count_downwards() {
        assert_eq!([0, 1, 25, 40, 99].map(|limit| allowed(Some(limit))), [20, 19, -5, -20, -20].map(Some));
        assert_eq!(allowed(None), None);
    }
}
