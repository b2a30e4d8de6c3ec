//! What is known of a process before anything is done to it, and why nothing can be.

use super::found::{Found, processes};
use super::freeze::{has_ended, let_new_first_go, threads};
use super::linked::{self, Lacking, Linked};
use super::loader::wait_for_rest;
use super::memory::Memory;
use super::native::MACHINE;
use super::rights::why_denied;
use crate::run::process::own_namespace;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long the child of a `vfork`, which shares its parent's memory too, may take to become another program.
const BECOMING: Duration = Duration::from_millis(300);

/// A process that shares the memory of this one, and isn't about to become another program. `alive`: a thread that has that memory.
fn lasting_guest(pid: u32, alive: i32) -> Option<u32> {
    const KCMP_VM: libc::c_int = 1;
    let shares = |&other: &u32| {
        // SAFETY: compares two processes' memory by their numbers, and touches none.
        other != pid && unsafe { libc::syscall(libc::SYS_kcmp, alive, other, KCMP_VM, 0, 0) } == 0
    };
    let end = Instant::now() + BECOMING;
    loop {
        let found = processes().find(shares)?;
        if Instant::now() > end {
            return Some(found);
        }
        thread::sleep(BECOMING / 30);
    }
}

/// How long another grapnel is waited for that holds a process still: it needs milliseconds, more on a busy machine.
const HELD: Duration = Duration::from_secs(5);

/// Why a process can't be attached to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("there is no process {0}")]
    NoProcess(u32),
    #[error("process {0} has ended, and waits for its parent to notice")]
    Ended(u32),
    #[error("process {0} is a thread of the kernel, which has no heap of this kind")]
    Kernel(u32),
    #[error("process {0} is grapnel itself")]
    Own(u32),
    #[error("{tid} is a thread of process {pid}; attach to {pid}")]
    Thread { tid: u32, pid: u32 },
    #[error(
        "process {pid} is 32-bit or for another machine; grapnel attaches to processes for its own machine only"
    )]
    Machine { pid: u32 },
    #[error("process {pid} is traced by {tracer}; end that first (a debugger, strace)")]
    Traced { pid: u32, tracer: String },
    #[error(
        "process {pid} is being attached to or left by another grapnel (pid {tracer}), which takes unusually long; try again"
    )]
    Held { pid: u32, tracer: u32 },
    #[error("process {pid} becomes other programs again and again; try again")]
    Changed { pid: u32 },
    #[error(
        "process {pid} is recorded already; end that recording first, by Ctrl-C or `grapnel detach {pid}`"
    )]
    Recorded { pid: u32 },
    #[error(
        "process {pid} is in seccomp's strict mode, where the first system call that the agent makes would kill it; it \
         can't be recorded"
    )]
    Strict { pid: u32 },
    #[error(
        "process {pid} has a filter for system calls (seccomp), which may kill it when the agent makes one that is not \
         foreseen; --force attaches all the same"
    )]
    Filtered { pid: u32 },
    #[error(
        "process {pid} shares its memory with process {other}, which `clone` made and which would run on while the code of both is \
         changed; it can be recorded from its start by `grapnel run`"
    )]
    Shared { pid: u32, other: u32 },
    #[error("process {pid} can't be traced: {why}")]
    Denied { pid: u32, why: String },
    #[error("process {pid} was started by `grapnel run`, and stays recorded until it ends")]
    Started { pid: u32 },
    #[error(
        "process {pid} was started by `grapnel run`, which has ended; the agent stays in the process and records nothing any \
         more, so only when that is started anew can it be recorded"
    )]
    Over { pid: u32 },
    #[error("another grapnel is about to attach to process {pid}, which takes unusually long; try again")]
    Entering { pid: u32 },
    #[error(
        "a grapnel that was about to attach to process {pid} was killed, and left a part of it there;          `grapnel detach {pid}` takes that out"
    )]
    Unfinished { pid: u32, session: u64 },
    #[error(
        "a recording of process {pid} is over, and the agent still in it; `grapnel detach {pid}` takes that out"
    )]
    Left { pid: u32 },
    #[error(
        "process {pid} has memory that is called like that of a recording and isn't one: it is of another version of \
         grapnel, or somebody else's"
    )]
    Unknown { pid: u32 },
    #[error(
        "process {pid} is a static program without symbols, where nothing says which functions are malloc and free; build it \
         without -s, or strip it by `strip --strip-debug`, which leaves them"
    )]
    Stripped { pid: u32 },
    #[error(
        "process {pid} is a static program that has no malloc and free, so it has no heap that could be recorded"
    )]
    Heapless { pid: u32 },
    #[error("process {pid} isn't recorded")]
    NotRecorded { pid: u32 },
    #[error("process {pid} can't be looked at: {error}")]
    Unreadable { pid: u32, error: io::Error },
}

impl TargetError {
    /// Whether it may be different in a moment, because another grapnel comes in, goes out or looks for itself.
    fn may_pass(&self) -> bool {
        let begun = matches!(self, Self::Entering { .. } | Self::Unfinished { .. });
        let over = matches!(self, Self::Left { .. } | Self::Unknown { .. });
        begun || over || matches!(self, Self::Held { .. } | Self::Changed { .. })
    }
}

/// Looks again for a while, as long as what is found may pass.
pub(crate) fn look_until<T>(mut look: impl FnMut() -> Result<T, TargetError>) -> Result<T, TargetError> {
    let end = Instant::now() + HELD;
    loop {
        match look() {
            Err(error) if error.may_pass() && Instant::now() < end => thread::sleep(HELD / 1000),
            looked => return looked,
        }
    }
}

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapLine {
    pub(crate) range: Range<u64>,
    pub(crate) readable: bool,
    pub(crate) executable: bool,
    pub(crate) inode: u64,
    pub(crate) name: String,
}

/// A process that may be attached to.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) pid: u32,
    /// What it is called in its own namespace of process ids, and that namespace.
    pub(crate) inner_pid: u32,
    pub(crate) namespace: u64,
    pub(crate) command: Vec<Vec<u8>>,
    /// The path of its file, below its root directory.
    pub(crate) executable: PathBuf,
    /// What the file of a static program says.
    pub(crate) linked: Option<Linked>,
    /// Its program headers: where they lie, and how many there are.
    pub(crate) program_headers: (u64, u64),
    /// That of this program: should the process become another one, nothing of it can be read or written.
    pub(crate) memory: Memory,
}

/// What the kernel says of a thread.
pub(super) struct Status(String);

impl Status {
    pub(super) fn of(path: &str) -> io::Result<Self> {
        fs::read_to_string(path).map(Self)
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.field(name)?.split_whitespace().next()?.parse().ok()
    }

    /// The innermost of several ids.
    fn inner(&self, name: &str) -> Option<u32> {
        self.field(name)?.split_whitespace().last()?.parse().ok()
    }
}

impl Target {
    /// Looks at a process. Another grapnel may be on its way in or out, and it may become another program meanwhile: then it is
    /// looked at again.
    pub(crate) fn look(pid: u32, force: bool) -> Result<Self, TargetError> {
        look_until(|| Self::look_now(pid, force))
    }

    fn look_now(pid: u32, force: bool) -> Result<Self, TargetError> {
        if pid == std::process::id() {
            return Err(TargetError::Own(pid));
        }
        let unreadable = |error: io::Error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => TargetError::NoProcess(pid),
            Some(libc::EACCES | libc::EPERM) => TargetError::Denied { pid, why: why_denied(pid) },
            _ => TargetError::Unreadable { pid, error },
        };
        let status = Status::of(&format!("/proc/{pid}/status")).map_err(unreadable)?;
        if let Some(group) = status.number("Tgid").filter(|&group| group != pid) {
            return Err(TargetError::Thread { tid: pid, pid: group });
        }
        let all = threads(pid).map_err(unreadable)?;
        if all.iter().all(|&tid| has_ended(pid, tid)) {
            return Err(TargetError::Ended(pid));
        }
        // The memory of a process whose first thread has ended by itself is that of the others.
        let alive = all.iter().copied().find(|&tid| !has_ended(pid, tid)).unwrap_or(pid as i32);
        let of_thread = |name: &str| format!("/proc/{pid}/task/{alive}/{name}");
        let status = Status::of(&of_thread("status")).map_err(unreadable)?;
        if status.field("VmSize").is_none() {
            return Err(TargetError::Kernel(pid));
        }
        // Each thread has its own tracer, and its own filters if they were not set for all.
        let each: Vec<_> =
            all.iter().filter_map(|tid| Status::of(&format!("/proc/{pid}/task/{tid}/status")).ok()).collect();
        let each = |name: &'static str| each.iter().filter_map(move |status| status.number(name));
        if let Some(tracer) = each("TracerPid").find(|&tracer| tracer != 0) {
            let_new_first_go(pid);
            let name = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
            return Err(match name.trim() {
                "grapnel" => TargetError::Held { pid, tracer },
                name => TargetError::Traced { pid, tracer: format!("{name} (pid {tracer})") },
            });
        }
        if each("Seccomp").any(|mode| mode == 1) {
            return Err(TargetError::Strict { pid });
        }
        if !force && each("Seccomp").any(|mode| mode == 2) {
            return Err(TargetError::Filtered { pid });
        }
        if let Some(other) = lasting_guest(pid, alive) {
            return Err(TargetError::Shared { pid, other });
        }
        // Of all that follows, which program it is said of.
        let memory = Memory::open(pid).map_err(unreadable)?;
        let maps = maps(pid, alive).map_err(unreadable)?;
        if let Some(found) = Found::find(&memory, &maps, None) {
            return Err(found.why_not(pid));
        }
        if !is_for_this_machine(&of_thread("exe")).map_err(unreadable)? {
            return Err(TargetError::Machine { pid });
        }
        let vector = fs::read(of_thread("auxv")).map_err(unreadable)?;
        let value = |key: libc::c_ulong| {
            let mut pairs = vector.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
            pairs.find(|&(known, _)| known == key).map_or(0, |(_, value)| value)
        };
        let program_headers = (value(libc::AT_PHDR), value(libc::AT_PHNUM));
        let linked =
            fs::File::open(of_thread("exe")).ok().and_then(|file| linked::look(file, program_headers.0));
        let linked = linked.transpose().map_err(|lacking| match lacking {
            Lacking::Symbols => TargetError::Stripped { pid },
            Lacking::Heap => TargetError::Heapless { pid },
        })?;
        wait_for_rest(&memory, program_headers);
        let target = Self {
            pid,
            inner_pid: status.inner("NStgid").unwrap_or(pid),
            namespace: fs::metadata(of_thread("ns/pid")).map_or_else(|_| own_namespace(), |file| file.ino()),
            command: fs::read(of_thread("cmdline")).map(|line| pieces(&line)).unwrap_or_default(),
            executable: below_root(&of_thread("exe"), &of_thread("root")),
            linked,
            program_headers,
            memory,
        };
        if target.has_changed() { Err(TargetError::Changed { pid }) } else { Ok(target) }
    }

    /// Whether the process has become another program since it was looked at, or has ended.
    pub(crate) fn has_changed(&self) -> bool {
        self.memory.word(self.program_headers.0).is_err()
    }

    /// Why a process can't be traced.
    pub(crate) fn denied(pid: u32) -> TargetError {
        TargetError::Denied { pid, why: why_denied(pid) }
    }

    /// What the process is called, for a person.
    pub(crate) fn name(&self) -> OsString {
        self.executable.file_name().unwrap_or_default().to_owned()
    }
}

/// The path that one of a process's links leads to, as the process itself would say it.
fn below_root(link: &str, root: &str) -> PathBuf {
    let path = fs::read_link(link).unwrap_or_default();
    let root = fs::read_link(root).unwrap_or_default();
    path.strip_prefix(root).map(|below| Path::new("/").join(below)).unwrap_or(path)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

fn pieces(line: &[u8]) -> Vec<Vec<u8>> {
    line.strip_suffix(b"\0").unwrap_or(line).split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()
}

/// A process's mappings, seen by one of its threads.
fn maps(pid: u32, tid: i32) -> io::Result<Vec<MapLine>> {
    let text = maps_text(pid, tid)?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(parsed).collect())
}

/// The same as the kernel writes them.
pub(crate) fn maps_text(pid: u32, tid: i32) -> io::Result<Vec<u8>> {
    fs::read(format!("/proc/{pid}/task/{tid}/maps"))
}

/// A process's mappings, seen by a thread that has not ended.
pub(crate) fn mappings(pid: u32) -> io::Result<Vec<MapLine>> {
    let alive = threads(pid)?.into_iter().find(|&tid| !has_ended(pid, tid));
    maps(pid, alive.unwrap_or(pid as i32))
}

/// `7f0000000000-7f0000001000 r-xp 00000000 fe:00 1234   /path`
fn parsed(line: &str) -> Option<MapLine> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let inode = fields.nth(2)?.parse().ok()?;
    let name = fields.next().unwrap_or("").trim().to_owned();
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(MapLine {
        range: number(start)?..number(end)?,
        readable: rights.starts_with('r'),
        executable: rights.contains('x'),
        inode,
        name,
    })
}

fn is_for_this_machine(path: &str) -> io::Result<bool> {
    use std::io::Read;
    let mut head = [0; 20];
    fs::File::open(path)?.read_exact(&mut head)?;
    let machine = u16::from_le_bytes([head[18], head[19]]);
    Ok(head.starts_with(b"\x7fELF\x02\x01") && machine == MACHINE)
}

/// What a thread is called in the innermost namespace of process ids.
pub(crate) fn inner_thread(pid: u32, tid: i32) -> Option<u32> {
    Status::of(&format!("/proc/{pid}/task/{tid}/status")).ok()?.inner("NSpid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mappings_are_read() {
        let line =
            parsed("7f12-7f34 r-xp 00000000 fe:00 1234                       /usr/lib/x (deleted)").unwrap();
        assert_eq!(line.inode, 1234);
        assert_eq!((line.range.clone(), line.readable, line.executable), (0x7f12..0x7f34, true, true));
        assert_eq!(line.name, "/usr/lib/x (deleted)");
        assert_eq!(parsed("1000-2000 rw-p 00000000 00:00 0 ").unwrap().name, "");
        assert_eq!(parsed("rubbish"), None);
    }

    #[test]
    fn what_is_not_there_or_not_to_be_had_is_said() {
        assert!(matches!(Target::look(u32::MAX >> 1, false), Err(TargetError::NoProcess(_))));
        assert!(matches!(Target::look(std::process::id(), false), Err(TargetError::Own(_))));
    }
}
