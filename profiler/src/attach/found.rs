//! A session's memory in a process, and what it says: whether that is recorded, and which way the agent came in.

use super::leave::Place;
use super::memory::Memory;
use super::target::{MapLine, TargetError};
use grapnel_trace::shared::{MAGIC, OWNER_DIED, SessionHeader};
use std::mem::offset_of;
use std::ops::Range;
use std::path::Path;

/// The name of a session's memory in a target's mappings.
const SESSION_NAME: &str = "/memfd:grapnel-session";

/// What a process with a session's memory is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// The agent came in while the process ran. `header`: where the session's header lies.
    Attached { place: Place, header: u64 },
    /// It was there from the start, in this process or in one that it was forked from.
    Started { is_over: bool },
    /// It isn't there yet, or never will be.
    Entering,
}

impl Found {
    /// Looks for the session with this number, or for any.
    pub(crate) fn find(memory: &Memory, maps: &[MapLine], session: Option<u64>) -> Option<Self> {
        let is_wanted = |line: &&MapLine| is_session(line) && session.is_none_or(|inode| line.inode == inode);
        let all = maps.iter().filter(is_wanted);
        let mut whole = all.clone().filter(|line| is_header(memory, &line.range));
        all.peekable().peek()?;
        let Some(line) = whole.next() else { return Some(Self::Entering) };
        let header = line.range.start;
        let word = |offset: usize| memory.word(header + offset as u64).unwrap_or(0);
        Some(match word(offset_of!(SessionHeader, ledger)) {
            0 => {
                let is_stopped = word(offset_of!(SessionHeader, stopped)) as u32 != 0;
                let has_owner = word(offset_of!(SessionHeader, owner)) as u32 & OWNER_DIED == 0;
                Self::Started { is_over: is_stopped || !has_owner }
            }
            ledger => Self::Attached { place: Place { ledger, inode: line.inode }, header },
        })
    }

    /// Why nobody can attach to such a process.
    pub(crate) fn why_not(self, pid: u32) -> TargetError {
        match self {
            Self::Attached { .. } => TargetError::Recorded { pid },
            Self::Started { is_over: true } => TargetError::Over { pid },
            Self::Started { is_over: false } => TargetError::Started { pid },
            Self::Entering => TargetError::Entering { pid },
        }
    }
}

fn is_session(line: &MapLine) -> bool {
    line.name.starts_with(SESSION_NAME)
}

/// Whether a descriptor's link leads to the memory of a session.
pub(crate) fn is_session_file(link: &Path) -> bool {
    link.as_os_str().as_encoded_bytes().starts_with(SESSION_NAME.as_bytes())
}

/// Whether the memory of another session is mapped.
pub(crate) fn has_another(maps: &[MapLine], inode: u64) -> bool {
    maps.iter().any(|line| is_session(line) && line.inode != inode)
}

/// Where the memory of the session with this number is mapped.
pub(crate) fn sessions(maps: &[MapLine], inode: u64) -> Vec<Range<u64>> {
    let is_it = |line: &&MapLine| is_session(line) && line.inode == inode;
    maps.iter().filter(is_it).map(|line| line.range.clone()).collect()
}

/// Whether a mapping of a session's memory begins with its header.
pub(crate) fn is_header(memory: &Memory, session: &Range<u64>) -> bool {
    let magic = memory.word(session.start + offset_of!(SessionHeader, magic) as u64);
    magic.is_ok_and(|magic| magic == MAGIC)
}
