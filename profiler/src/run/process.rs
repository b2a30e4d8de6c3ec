//! Another process's life and end, by descriptor: an id may be somebody else's by the time one asks.
//!
//! # Safety
//! System calls on descriptors and buffers of our own.

use grapnel_trace::Exit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A handle on a process.
#[derive(Debug)]
pub(crate) struct Process {
    handle: OwnedFd,
    pid: u32,
}

/// `struct pidfd_info` of linux/pidfd.h, up to the exit status.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xFF, 11, struct pidfd_info)` with the structure's first published size.
const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b;
const _: () = assert!(size_of::<PidfdInfo>() == 64);

impl Process {
    /// `None`: it is gone, or the kernel has no such handles (before 5.3).
    pub(crate) fn open(pid: u32) -> Option<Self> {
        // SAFETY: the descriptor that comes back is new and ours.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            (fd >= 0).then(|| Self { handle: OwnedFd::from_raw_fd(fd as i32), pid })
        }
    }

    /// Whether it has ended, reaped or not.
    pub(crate) fn has_ended(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live entry.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    /// Its processor time, as long as it is not reaped.
    pub(crate) fn cpu_ns(&self) -> Option<u64> {
        let cpu = cpu_ns(self.pid);
        // If it was not reaped by now, the id was its own.
        self.exists().then_some(cpu).flatten()
    }

    /// Whether it was not reaped yet.
    fn exists(&self) -> bool {
        // SAFETY: signal 0 is not sent.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.handle.as_raw_fd(), 0, 0, 0) == 0 }
    }

    /// How it ended, where the kernel tells (6.15 and later), once its parent has asked.
    pub(crate) fn exit(&self) -> Option<Exit> {
        let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
        // SAFETY: the structure is live and as long as the request's number says.
        let error = unsafe { libc::ioctl(self.handle.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
        (error == 0 && info.mask & PIDFD_INFO_EXIT != 0).then(|| exit_of(info.exit_code))
    }
}

/// The processor time of a process, all its threads together, in nanoseconds. `None` once it is reaped.
pub(crate) fn cpu_ns(pid: u32) -> Option<u64> {
    // What clock_getcpuclockid gives, which asks the kernel besides (MAKE_PROCESS_CPUCLOCK with CPUCLOCK_SCHED).
    let clock = (!pid << 3 | 2).cast_signed();
    time_of(clock)
}

/// The processor time of the calling thread, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

fn time_of(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live for the call.
    let error = unsafe { libc::clock_gettime(clock, &mut time) };
    (error == 0).then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The most memory that this process had, in bytes.
pub(crate) fn peak_memory() -> u64 {
    // SAFETY: zeroes are a value, which the call fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    usage.ru_maxrss as u64 * 1024
}

/// A status as `waitpid` gives it.
pub(crate) fn exit_of(status: i32) -> Exit {
    if libc::WIFSIGNALED(status) {
        Exit::Signal(libc::WTERMSIG(status))
    } else {
        Exit::Code(libc::WEXITSTATUS(status))
    }
}

/// Nanoseconds of CLOCK_MONOTONIC, the same for all processes.
pub(crate) fn monotonic_ns() -> u64 {
    time_of(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// The inode of this process's namespace of process ids.
pub(crate) fn own_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}
