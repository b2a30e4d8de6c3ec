//! Whose segment it is.

use super::process::{monotonic_ns, own_namespace};
use super::shared::Segment;
use grapnel_trace::ProcessInfo;
use grapnel_trace::shared::{TEXT_BYTES, Text};
use std::sync::atomic::Ordering;
use std::time::SystemTime;

/// What tells processes apart: ids are unique in their namespace only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessId {
    namespace: u64,
    pid: u32,
}

impl ProcessId {
    /// The process that a segment says it is of.
    pub(crate) fn of(segment: &Segment) -> Self {
        let header = segment.header();
        Self {
            namespace: header.process_namespace.load(Ordering::Relaxed),
            pid: header.pid.load(Ordering::Relaxed),
        }
    }

    /// The process that we call `pid`.
    pub(crate) fn ours(pid: u32) -> Self {
        Self { namespace: own_namespace(), pid }
    }

    /// Its number, in its namespace.
    pub(crate) fn pid(self) -> u32 {
        self.pid
    }

    /// The process that is called `pid` in a namespace.
    pub(crate) fn in_namespace(namespace: u64, pid: u32) -> Self {
        Self { namespace, pid }
    }

    pub(super) fn is_ours(self) -> bool {
        self.namespace == own_namespace()
    }
}

/// The bytes of a text in shared memory.
pub(crate) fn text(text: &Text) -> Vec<u8> {
    let mut buffer = [0; TEXT_BYTES];
    text.get(&mut buffer).to_vec()
}

/// The strings of a text, each of which ends with a zero byte.
pub(super) fn pieces(text: &[u8]) -> Vec<Vec<u8>> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    if text.is_empty() { Vec::new() } else { text.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect() }
}

/// The arguments: as far as there was room for them in the segment, or, if that was not far enough and the process can
/// still be asked, all of them.
fn command(segment: &Segment) -> Vec<Vec<u8>> {
    let header = segment.header();
    let known = pieces(&text(&header.command));
    let count = header.arguments.load(Ordering::Relaxed) as usize;
    if known.len() < count && ProcessId::of(segment).is_ours() {
        let asked = std::fs::read(format!("/proc/{}/cmdline", header.pid.load(Ordering::Relaxed)));
        let all = asked.map(|asked| pieces(&asked)).unwrap_or_default();
        if all.starts_with(&known) && all.len() == count {
            return all;
        }
    }
    known
}

/// What a segment says of its process.
pub(crate) fn describe(segment: &Segment) -> ProcessInfo {
    let header = segment.header();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ago = monotonic_ns().saturating_sub(header.started_ns.load(Ordering::Relaxed));
    ProcessInfo {
        pid: header.pid.load(Ordering::Relaxed),
        ppid: header.ppid.load(Ordering::Relaxed),
        command: command(segment),
        executable: pieces(&text(&header.executable)).into_iter().next().unwrap_or_default(),
        started_unix_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).saturating_sub(ago),
        machine: std::env::consts::ARCH.into(),
        recorder: env!("CARGO_PKG_VERSION").into(),
    }
}
