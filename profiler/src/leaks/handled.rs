//! Whether a signal ends what a thread waits in, so that whoever has stopped the thread hasn't.

use std::fs;

/// Whether a signal waits, or is about to come, that a thread has a handler for and doesn't block. `next`: the one that is about to
/// come, or 0.
pub(crate) fn is_handled(tid: i32, next: i32) -> bool {
    is_handled_in(&fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default(), next)
}

fn is_handled_in(status: &str, next: i32) -> bool {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":"));
        line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
    };
    let next = u32::try_from(next - 1).ok().and_then(|bit| 1u64.checked_shl(bit)).unwrap_or(0);
    ((set("SigPnd") | set("ShdPnd")) & !set("SigBlk") | next) & set("SigCgt") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_with_a_handler_cuts_a_call_short() {
        let status = "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000400\nSigBlk:\t0000000000000000\n\
                      SigCgt:\t0000000000000200\n";
        assert!(!is_handled_in(status, 0));
        assert!(!is_handled_in(status, libc::SIGCHLD));
        assert!(is_handled_in(status, libc::SIGUSR1));
        let blocked = status.replace("SigCgt:\t0000000000000200", "SigCgt:\t0000000000000600");
        assert!(is_handled_in(&blocked, 0));
        let blocked = blocked.replace("SigBlk:\t0000000000000000", "SigBlk:\t0000000000000400");
        assert!(!is_handled_in(&blocked, 0));
    }
}
