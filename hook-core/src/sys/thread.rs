//! The threads of this process, as the kernel shows them.
//!
//! Whoever asks about many threads reads these files for each: nothing here is fast.

use alloc::vec::Vec;
use core::{
    ffi::CStr,
    sync::atomic::{AtomicU32, Ordering::Acquire},
};

use syscalls::Sysno;

use super::{Fd, PAGE, Result, retry, syscall};
use crate::native;

/// What the kernel says of a thread (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thread {
    /// It runs no code of the program: it has ended, as the first thread may have while others go on, or it is one of the
    /// kernel's own (of io_uring, say).
    pub(crate) runs_nothing: bool,
    /// When it began, as [`ticks`] counts.
    pub(crate) began: u64,
}

impl Thread {
    /// `None` if there is no such thread, or nothing can be known of it.
    pub(crate) fn of(id: i32) -> Option<Self> {
        let mut buf = [0; 512];
        Self::parse(read(id, "stat", &mut buf)?)
    }

    fn parse(stat: &[u8]) -> Option<Self> {
        // Counted behind the name, which is in parentheses and may hold anything: fields 3, 9 and 22.
        const STATE: usize = 0;
        const FLAGS: usize = 6;
        const BEGAN: usize = 19;
        // `PF_IO_WORKER` and `PF_USER_WORKER` (include/linux/sched.h).
        const WORKER: u64 = 0x10 | 0x4000;
        let name_end = stat.iter().rposition(|&byte| byte == b')')?;
        let rest = stat.get(name_end + 2..)?;
        let field = |index| rest.split(|&byte| byte == b' ').nth(index);
        let worker = number(field(FLAGS)?, 10)? & WORKER != 0;
        let ended = matches!(field(STATE)?, b"Z" | b"X");
        Some(Self { runs_nothing: worker || ended, began: number(field(BEGAN)?, 10)? })
    }
}

/// Waits until others say that a word has changed from this value, or so many milliseconds are over, or a signal came. `true` if
/// it has another value.
pub(crate) fn wait_for_change(word: &AtomicU32, value: u32, milliseconds: usize) -> bool {
    let time = libc::timespec { tv_sec: 0, tv_nsec: (milliseconds.min(999) * 1_000_000) as _ };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word and one structure.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), operation, value, &raw const time, 0, 0) };
    word.load(Acquire) != value
}

/// Wakes all who wait for a word.
pub(crate) fn wake_all(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel looks for those who wait at the word's address.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), operation, i32::MAX, 0, 0, 0) };
}

/// The time since the system's start, in hundredths of a second (`USER_HZ`).
pub(crate) fn ticks() -> Result<u64> {
    clock(libc::CLOCK_BOOTTIME)
}

fn clock(which: i32) -> Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one structure.
    unsafe { syscall!(Sysno::clock_gettime, which, &raw mut time) }?;
    Ok(time.tv_sec as u64 * 100 + time.tv_nsec as u64 / 10_000_000)
}

/// When this process began, in hundredths of a second since 1970, by the clock as it goes now. `None` if nothing can be known
/// of it.
pub(crate) fn began() -> Option<u64> {
    let mut buf = [0; 512];
    let len = Fd::open(c"/proc/self/stat", libc::O_RDONLY).and_then(|file| file.read(&mut buf)).ok()?;
    let process = Thread::parse(buf.get(..len)?)?;
    let age = ticks().ok()?.checked_sub(process.began)?;
    clock(libc::CLOCK_REALTIME).ok()?.checked_sub(age)
}

/// Whether a thread wouldn't run the handler of a signal, but leave the signal waiting: it has it blocked, or waits for
/// signals by `sigwait`, which takes any that comes. What a thread leaves waiting may kill the program that it executes later.
pub(crate) fn leaves_waiting(id: i32, signal: i32) -> bool {
    let mut buf = [0; PAGE];
    let blocked = read(id, "status", &mut buf).and_then(blocked).unwrap_or(0);
    if blocked >> (signal - 1) & 1 != 0 {
        return true;
    }
    // The number of the system call that it is in, or "running". While it waits for signals, these count as not blocked.
    let mut buf = [0; 256];
    let call = read(id, "syscall", &mut buf).and_then(|text| number(text.split(|&b| b == b' ').next()?, 10));
    call.is_some_and(|call| native::SIGNAL_WAITS.iter().any(|wait| *wait as u64 == call))
}

/// The signals that are blocked, from proc_pid_status(5).
fn blocked(status: &[u8]) -> Option<u64> {
    number(line(status, b"SigBlk:\t")?, 16)
}

fn line<'a>(status: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))
}

/// Whether `/proc` has the numbers for threads that this process has for them. It hasn't in a namespace of processes for which
/// no other was mounted.
pub(crate) fn proc_has_our_numbers() -> bool {
    let mut buf = [0; PAGE];
    let file = Fd::open(c"/proc/thread-self/status", libc::O_RDONLY);
    let len = file.and_then(|file| file.read(&mut buf)).unwrap_or(0);
    has_one_number(buf.get(..len).unwrap_or(&[]))
}

/// The numbers go from that of the namespace that `/proc` shows to the thread's own (proc_pid_status(5); kernels before 4.1
/// don't say).
fn has_one_number(status: &[u8]) -> bool {
    line(status, b"NSpid:\t").is_none_or(|numbers| !numbers.contains(&b'\t'))
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, radix).ok()
}

/// The beginning of a file about a thread.
fn read<'a>(id: i32, file: &str, buf: &'a mut [u8]) -> Option<&'a [u8]> {
    let path = alloc::format!("/proc/self/task/{id}/{file}\0");
    let path = CStr::from_bytes_with_nul(path.as_bytes()).ok()?;
    let len = Fd::open(path, libc::O_RDONLY).and_then(|file| file.read(buf)).ok()?;
    buf.get(..len)
}

/// The threads of this process, and whether these are all: one that is there all the time may be missing if another ends
/// meanwhile.
pub(crate) fn threads() -> Result<(Vec<i32>, bool)> {
    /// Where the length of an entry of the directory stands, and its name (getdents64(2)).
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let directory = Fd::open(c"/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY)?;
    let before = directory.status()?.links;
    let mut threads = Vec::new();
    let mut buf = alloc::vec![0u8; 32 << 10];
    loop {
        // SAFETY: the kernel writes at most `buf.len()` bytes at `buf`, which is borrowed for the call.
        let n =
            retry(|| unsafe { syscall!(Sysno::getdents64, directory.raw(), buf.as_mut_ptr(), buf.len()) })?;
        if n == 0 {
            break;
        }
        let mut rest = buf.get(..n).unwrap_or(&[]);
        while let (Some(&[low, high]), Some(name)) = (rest.get(LENGTH..LENGTH + 2), rest.get(NAME..)) {
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
            let id = digits.fold(0i32, |id, digit| id.wrapping_mul(10).wrapping_add(i32::from(digit - b'0')));
            threads.extend((id > 0).then_some(id));
            let len = usize::from(u16::from_ne_bytes([low, high]));
            rest = rest.get(len.max(1)..).unwrap_or(&[]);
        }
    }
    // A folder has a link for each that is in it, its own and its parent's.
    let all = [before, directory.status()?.links].iter().all(|&links| links == threads.len() as u32 + 2);
    Ok((threads, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let rest = "1 2 3 0 -1 4194624 5 0 0 0 1 2 0 0 20 0 9 0 54321 11 12";
        let parsed = |state: &str| Thread::parse(format!("7 (a) b (c)) {state} {rest}\n").as_bytes());
        assert_eq!(parsed("S"), Some(Thread { runs_nothing: false, began: 54321 }));
        assert_eq!(parsed("Z"), Some(Thread { runs_nothing: true, began: 54321 }));
        let worker =
            Thread::parse(format!("7 (iou-sqp-1) S {}", rest.replace("4194624", "4194640")).as_bytes());
        assert_eq!(worker, Some(Thread { runs_nothing: true, began: 54321 }));
        for cut in ["", "7 (a", "7 (a)", "7 (a) S 1 2 3"] {
            assert_eq!(Thread::parse(cut.as_bytes()), None);
        }
    }

    #[test]
    fn this_thread_is_seen() {
        let (threads, _) = threads().unwrap();
        assert!(threads.contains(&crate::sys::tid()));
        let thread = Thread::of(crate::sys::tid()).unwrap();
        assert!(!thread.runs_nothing && thread.began <= ticks().unwrap(), "{thread:?}");
        assert!(thread.began + 100 * 3600 > ticks().unwrap(), "{thread:?}");
        assert!(!leaves_waiting(crate::sys::tid(), 64));
        assert_eq!(Thread::of(i32::MAX), None);
        assert!(proc_has_our_numbers());
    }

    #[test]
    fn numbers_of_several_namespaces_are_seen() {
        assert!(has_one_number(b"Pid:\t7\nNSpid:\t7\nNSpgid:\t7\t1\n"));
        assert!(!has_one_number(b"Pid:\t7\nNSpid:\t7\t1\n"));
        assert!(has_one_number(b"Pid:\t7\n"));
    }

    #[test]
    fn what_is_blocked_is_read() {
        assert_eq!(blocked(b"Name:\tx\nSigBlk:\t8000000000000001\nSigIgn:\t0\n"), Some(1 << 63 | 1));
        assert_eq!(blocked(b"Name:\tx\n"), None);
    }
}
