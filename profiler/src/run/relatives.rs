//! Who descends from whom, and who stands still: what `/proc/PID/stat` says.
//!
//! # Safety
//! System calls on a path that ends with a zero and on live buffers.

use rustix::fs::{Mode, OFlags, RawDir, open};
use std::ffi::CStr;
use std::io::Write;
use std::mem::MaybeUninit;

/// No family is deeper; the ids may be others' while one looks, and lead in a circle.
const MOST_GENERATIONS: usize = 4096;

/// A process, at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relative {
    state: u8,
    parent: libc::pid_t,
}

impl Relative {
    /// Allocates nothing and takes no lock: for the child of a fork, too. `None`: it is gone.
    pub(crate) fn of(pid: libc::pid_t) -> Option<Self> {
        let mut path = [0u8; 32];
        // The last byte stays zero.
        write!(&mut path[..31], "/proc/{pid}/stat").ok()?;
        let found = read_stat(&path)?;
        if found.state != b'Z' {
            return Some(found);
        }
        // Its first thread has ended: others may go on.
        Some(threads_state(pid).map_or(found, |state| Self { state, ..found }))
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // Behind the name, which may have anything in it.
        let name_end = text.iter().rposition(|&byte| byte == b')')?;
        let mut fields = text.get(name_end + 1..)?.split(|&byte| byte == b' ').skip(1);
        let state = *fields.next()?.first()?;
        let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        Some(Self { state, parent })
    }

    /// Whether a signal has stopped it.
    pub(crate) fn is_stopped(self) -> bool {
        self.state == b'T'
    }

    /// Whether it is neither stopped nor at its end.
    fn runs(self) -> bool {
        !b"TtZX".contains(&self.state)
    }
}

/// What a file says whose path ends with a zero. Allocates nothing.
fn read_stat(path: &[u8]) -> Option<Relative> {
    // The fields in question come first, behind a name of no more than 64 bytes.
    let mut text = [0u8; 256];
    // SAFETY: see the module's header.
    let len = unsafe {
        let file = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return None;
        }
        let len = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        len
    };
    Relative::parse(text.get(..usize::try_from(len).ok()?)?)
}

/// The state of a process's threads: of one that runs if any does, else of one that is stopped; `None` where all have ended. As [`Relative::of`], it allocates nothing.
fn threads_state(pid: libc::pid_t) -> Option<u8> {
    let mut path = [0u8; 32];
    write!(&mut path[..31], "/proc/{pid}/task").ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let folder = open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(folder, &mut buffer);
    let mut found = None;
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_str().ok();
        let Some(thread) = name.and_then(|name| name.parse().ok()) else { continue };
        match thread_state(pid, thread) {
            None | Some(b'Z' | b'X') => {}
            Some(state @ (b'T' | b't')) => found = Some(state),
            running => return running,
        }
    }
    found
}

/// The state of one thread.
fn thread_state(pid: libc::pid_t, thread: libc::pid_t) -> Option<u8> {
    let mut path = [0u8; 64];
    write!(&mut path[..63], "/proc/{pid}/task/{thread}/stat").ok()?;
    read_stat(&path).map(|it| it.state)
}

/// Whether a process is another or descends from it. One whose parent has ended is nobody's descendant any more, and one that
/// was reaped is not known.
pub(crate) fn descends_from(pid: libc::pid_t, ancestor: libc::pid_t) -> bool {
    leads_to(pid, ancestor, |pid| Relative::of(pid).map(|it| it.parent))
}

fn leads_to(
    mut pid: libc::pid_t,
    ancestor: libc::pid_t,
    parent: impl Fn(libc::pid_t) -> Option<libc::pid_t>,
) -> bool {
    for _ in 0..MOST_GENERATIONS {
        if pid == ancestor {
            return true;
        }
        match parent(pid) {
            Some(next) if next > 0 => pid = next,
            _ => return false,
        }
    }
    false
}

/// Whether any descendant of a process runs.
pub(crate) fn descendant_runs(ancestor: libc::pid_t) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else { return true };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: std::collections::HashMap<libc::pid_t, Relative> =
        pids.filter_map(|pid| Some((pid, Relative::of(pid)?))).collect();
    let parent = |pid| all.get(&pid).map(|it| it.parent);
    all.iter().any(|(&pid, it)| pid != ancestor && it.runs() && leads_to(pid, ancestor, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_anything_in_it() {
        let parsed = Relative::parse(b"12 (a) T 1 (b) S 34 5 6\n");
        assert_eq!(parsed, Some(Relative { state: b'S', parent: 34 }));
        assert_eq!(Relative::parse(b"12 (a"), None);
        assert_eq!(Relative::parse(b"12 (a) S"), None);
    }

    #[test]
    fn threads_have_states() {
        let own = std::process::id().cast_signed();
        // The one that asks runs.
        assert!(matches!(threads_state(own), Some(b'R' | b'S' | b'D')));
        assert_eq!(threads_state(0), None);
    }

    #[test]
    fn this_process_descends_from_its_parent() {
        let own = std::process::id().cast_signed();
        let parent = std::os::unix::process::parent_id().cast_signed();
        assert!(descends_from(own, own) && descends_from(own, parent));
        assert!(!descends_from(parent, own));
        assert!(descendant_runs(parent));
    }
}
