//! What helps where a process can't be given what the agent needs: limits of its own, mostly.

use std::io;

/// What fails where code can't be made.
pub(super) const NO_CODE: &str = "the agent's code can't be made executable";

/// What to say behind an error that a system call of the process gave, for a sentence: nothing where nothing is known to help.
pub(super) fn what_helps(pid: u32, what: &str, error: &io::Error) -> String {
    let raise = |what: &str, option: &str| {
        format!(
            "; {what}: raise that with `prlimit --pid {pid} --{option}=unlimited`, or in its control group"
        )
    };
    match error.raw_os_error() {
        Some(libc::ENOMEM) => raise("its memory is limited (RLIMIT_AS, RLIMIT_DATA)", "as"),
        // Of a mapping that would be locked into memory, or of a thread.
        Some(libc::EAGAIN) => {
            let locked = "; its locked memory or its threads are limited (RLIMIT_MEMLOCK, RLIMIT_NPROC): raise that with";
            format!("{locked} `prlimit --pid {pid} --memlock=unlimited --nproc=unlimited`, or in its control group")
        }
        Some(libc::EMFILE) => format!(
            "; its open files are limited to none: raise that with `prlimit --pid {pid} --nofile=64`, which closes nothing"
        ),
        Some(libc::EACCES | libc::EPERM) if what == NO_CODE => {
            "; it has denied itself code that is made while it runs (PR_SET_MDWE), or a security module does; start it without"
                .into()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_come_with_what_raises_them() {
        let said = |number| what_helps(7, NO_CODE, &io::Error::from_raw_os_error(number));
        assert!(said(libc::ENOMEM).contains("prlimit --pid 7 --as=unlimited"));
        assert!(said(libc::EAGAIN).contains("--memlock=unlimited --nproc=unlimited"));
        assert!(said(libc::EMFILE).contains("--nofile=64"));
        assert!(said(libc::EACCES).contains("PR_SET_MDWE"));
        assert_eq!(said(libc::EIO), "");
        assert_eq!(what_helps(7, "a thread can't be made", &io::Error::from_raw_os_error(libc::EPERM)), "");
    }
}
