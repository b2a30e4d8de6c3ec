//! A session's memory in a process, and what it says: whether that is recorded, and which way the agent came in.

use super::leave::Place;
use super::memory::Memory;
use super::target::{MapLine, TargetError};
use super::working::CODE_BYTES;
use grapnel_trace::shared::{HEADER_BYTES, MAGIC, OWNER_DIED, SessionHeader};
use std::fs;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The name of a session's memory in a target's mappings.
const SESSION_NAME: &str = "/memfd:grapnel-session";

/// What a process with a session's memory is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// The agent came in while the process ran. `header`: where the session's header lies.
    Attached { place: Place, header: u64, is_over: bool },
    /// It was there from the start, in this process or in one that it was forked from.
    Started { is_over: bool },
    /// It isn't there yet, or never will be: all that there is of it is known by the session's number.
    Begun { session: u64 },
    /// What was there has just gone, or it is nothing that is known here.
    Unknown,
}

impl Found {
    /// Looks for the session with this number, or for any.
    pub(crate) fn find(memory: &Memory, maps: &[MapLine], session: Option<u64>) -> Option<Self> {
        let is_wanted = |line: &&MapLine| is_session(line) && session.is_none_or(|inode| line.inode == inode);
        let all = maps.iter().filter(is_wanted);
        all.clone().next()?;
        let whole = all.clone().find(|line| is_header(memory, &line.range));
        let found = match whole {
            Some(line) => Self::of_header(memory, line),
            None => {
                let begun = all.clone().find(|line| is_begun(memory, maps, &line.range));
                Ok(begun.map_or(Self::Unknown, |line| Self::Begun { session: line.inode }))
            }
        };
        Some(found.unwrap_or(Self::Unknown))
    }

    /// What a session's header says, as long as that is there.
    fn of_header(memory: &Memory, line: &MapLine) -> io::Result<Self> {
        let header = line.range.start;
        let word = |offset: usize| memory.word(header + offset as u64);
        let is_stopped = word(offset_of!(SessionHeader, stopped))? as u32 != 0;
        let has_owner = word(offset_of!(SessionHeader, owner))? as u32 & OWNER_DIED == 0;
        Ok(match word(offset_of!(SessionHeader, ledger))? {
            0 => Self::Started { is_over: is_stopped || !has_owner },
            ledger => {
                Self::Attached { place: Place { ledger, inode: line.inode }, header, is_over: is_stopped }
            }
        })
    }

    /// Why nobody can attach to such a process.
    pub(crate) fn why_not(self, pid: u32) -> TargetError {
        match self {
            Self::Attached { is_over: true, .. } => TargetError::Left { pid },
            Self::Attached { is_over: false, .. } => TargetError::Recorded { pid },
            Self::Started { is_over: true } => TargetError::Over { pid },
            Self::Started { is_over: false } => TargetError::Started { pid },
            Self::Begun { session } if is_held(session, pid) => TargetError::Entering { pid },
            Self::Begun { session } => TargetError::Unfinished { pid, session },
            Self::Unknown => TargetError::Unknown { pid },
        }
    }
}

fn is_session(line: &MapLine) -> bool {
    line.name.starts_with(SESSION_NAME)
}

/// Whether a process has the file of this session's memory open, as who records has. `None`: its descriptors can't be seen.
pub(crate) fn has_open(pid: u32, session: u64) -> Option<bool> {
    let is_session = |link: &Path| link.as_os_str().as_encoded_bytes().starts_with(SESSION_NAME.as_bytes());
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let links =
        entries.flatten().filter(|entry| fs::read_link(entry.path()).is_ok_and(|link| is_session(&link)));
    Some(
        links
            .map(|entry| fs::metadata(entry.path()))
            .any(|file| file.is_ok_and(|file| file.ino() == session)),
    )
}

/// All processes.
pub(crate) fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a grapnel that lives has the memory of a session that a process has.
fn is_held(session: u64, pid: u32) -> bool {
    let may_be = |other: u32| {
        fs::read_to_string(format!("/proc/{other}/comm")).is_ok_and(|name| name.trim() == "grapnel")
    };
    processes()
        .filter(|&other| other != pid)
        .any(|other| has_open(other, session).unwrap_or_else(|| may_be(other)))
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

/// Whether a mapping of a session's memory begins with a header that says no more than what was mapped for the agent.
fn is_begun(memory: &Memory, maps: &[MapLine], session: &Range<u64>) -> bool {
    let magic = memory.word(session.start + offset_of!(SessionHeader, magic) as u64);
    magic.is_ok_and(|magic| magic == 0) && reserved(memory, maps, session).is_some()
}

/// All that was mapped for the agent in one piece, whose beginning is this mapping of the session's memory.
pub(crate) fn reserved(memory: &Memory, maps: &[MapLine], session: &Range<u64>) -> Option<Range<u64>> {
    let len = memory.word(session.start + offset_of!(SessionHeader, reserved) as u64).ok()?;
    let all = session.start..session.start.checked_add(len)?;
    // The agent's own memory lies there by now, or the session's does still.
    let is_its = |line: &&MapLine| {
        is_session(line) || line.inode == 0 && (line.name.is_empty() || line.name.starts_with("[anon:"))
    };
    let mut end = all.start;
    while end < all.end {
        end = maps.iter().filter(is_its).find(|line| line.range.contains(&end))?.range.end;
    }
    (len > HEADER_BYTES).then_some(all)
}

/// Where the code of the thread was mapped that was made to bring the agent in, as a mapping of the session's memory says.
pub(crate) fn thread_code(memory: &Memory, session: &Range<u64>) -> Option<Range<u64>> {
    let at = memory.word(session.start + offset_of!(SessionHeader, thread_code) as u64).ok()?;
    Some(at..at.checked_add(CODE_BYTES)?).filter(|_| at != 0)
}
