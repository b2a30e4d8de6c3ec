//! The way out, from outside: no line of the agent runs for it.
//!
//! While all threads stand, what was changed is put back as it was. A call that is in the agent then goes on to its end, so
//! threads are looked at again until none is inside. Then one thread unmaps what the agent mapped.
//!
//! A thread is inside if it runs the agent's code or stands on a stack of the agent's; if its stack holds an address in the
//! agent's stubs, from which every call into the agent is made and which wipe that address out when the call has come
//! back; or if a signal interrupted it at such a place.

use super::book::{Book, Edit, Held};
use super::freeze::{FreezeError, Freezer, Frozen};
use super::memory::Memory;
use super::native::Registers;
use super::stacks;
use super::target::{MapLine, SESSION_NAME, mappings};
use super::working::{Borrowed, Instructions, is_on_own_stack};
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The longest that threads are waited for to come out of the agent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a session's agent is: in the process, and by fork in its children.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The ledger's address.
    pub(crate) ledger: u64,
    /// The number of the session's memory, by which is known that the ledger is still there.
    pub(crate) inode: u64,
}

impl Place {
    /// Whether a process with these mappings has the agent.
    pub(crate) fn is_in(&self, maps: &[MapLine]) -> bool {
        !self.sessions(maps).is_empty()
    }

    /// Where the session's memory is mapped.
    fn sessions(&self, maps: &[MapLine]) -> Vec<Range<u64>> {
        let is_session = |line: &&MapLine| line.inode == self.inode && line.name.starts_with(SESSION_NAME);
        maps.iter().filter(is_session).map(|line| line.range.clone()).collect()
    }
}

/// What is to be taken out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Agent<'a> {
    /// All that the ledger says.
    Whole(Place),
    /// Mappings: there is no ledger yet.
    Begun(&'a [(u64, u64)]),
}

impl Agent<'_> {
    /// Whether it is in the process still. The file of an address space that is gone reads as empty.
    fn is_there(self, memory: &Memory) -> bool {
        let at = match self {
            Self::Whole(place) => Some(place.ledger),
            Self::Begun(mapped) => mapped.first().map(|&(start, _)| start),
        };
        at.is_some_and(|at| memory.word(at).is_ok())
    }
}

/// What became of the agent in a process.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Threads that may still be inside, for which the agent's memory was kept.
    pub(crate) inside: usize,
    /// Places that somebody else has changed since, which were left as they are, and the agent's memory with them.
    pub(crate) changed: Vec<u64>,
    /// How long threads stood, at most.
    pub(crate) stood: Duration,
    /// Bytes that were unmapped.
    pub(crate) unmapped: u64,
    /// Bytes that were kept.
    pub(crate) kept: u64,
}

/// Why nothing could be taken out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaveError {
    #[error("process {0} has ended or has become another program")]
    Gone(u32),
    #[error(
        "the threads of process {pid} can't be stopped: {why}; it goes on with the agent in it, which records nothing any \
         more. `grapnel detach {pid}` tries again"
    )]
    NoStop { pid: u32, why: String },
    #[error("process {pid}: {error}; `grapnel detach {pid}` tries again")]
    System { pid: u32, error: io::Error },
}

/// Takes the agent out of a process.
pub(crate) fn leave(
    pid: u32,
    freezer: &mut Freezer,
    memory: &Memory,
    agent: Agent<'_>,
) -> Result<Left, LeaveError> {
    let mut left = Left::default();
    let deadline = Instant::now() + PATIENCE;
    let mut nap = Duration::from_millis(1);
    loop {
        let since = Instant::now();
        let frozen = match freezer.freeze(None) {
            Ok(frozen) => frozen,
            Err(FreezeError::Gone) => return Err(LeaveError::Gone(pid)),
            Err(_) if Instant::now() < deadline => {
                std::thread::sleep(nap);
                nap = (2 * nap).min(Duration::from_millis(50));
                continue;
            }
            Err(FreezeError::Busy(tid)) => {
                let why = format!("{tid} waits for its child of vfork, or for a device");
                return Err(LeaveError::NoStop { pid, why });
            }
            Err(FreezeError::Refused(error)) => {
                return Err(LeaveError::NoStop { pid, why: error.to_string() });
            }
        };
        let looked = look(pid, &frozen, memory, agent, &mut left);
        let (book, restored) = match looked {
            Ok(Some(looked)) => looked,
            Ok(None) => {
                frozen.let_go();
                return Err(LeaveError::Gone(pid));
            }
            Err(error) => {
                frozen.let_go();
                let gone = !agent.is_there(memory);
                return Err(if gone { LeaveError::Gone(pid) } else { LeaveError::System { pid, error } });
            }
        };
        let is_out = left.inside == 0 && restored;
        if is_out && left.changed.is_empty() {
            let unmapped = unmap(pid, frozen, memory, &book, agent);
            left.stood = left.stood.max(since.elapsed());
            left.unmapped = unmapped.map_err(|error| LeaveError::System { pid, error })?;
            return Ok(left);
        }
        frozen.let_go();
        left.stood = left.stood.max(since.elapsed());
        if is_out || Instant::now() > deadline {
            let lengths = book.mappings.iter().map(|held| held.range.end - held.range.start);
            left.kept = lengths.fold(0, u64::saturating_add);
            return Ok(left);
        }
        std::thread::sleep(nap);
        nap = (2 * nap).min(Duration::from_millis(50));
    }
}

/// Puts back what was changed, each time anew: who was inside may have put hooks in since. Counts who is inside, and says
/// whether all could be put back. `None` if the agent isn't there any more.
fn look(
    pid: u32,
    frozen: &Frozen,
    memory: &Memory,
    agent: Agent<'_>,
    left: &mut Left,
) -> io::Result<Option<(Book, bool)>> {
    let maps = mappings(pid)?;
    let book = match agent {
        Agent::Whole(place) if place.is_in(&maps) => Book::read(memory, place.ledger)?,
        Agent::Begun(mapped) if agent.is_there(memory) => Book::begun(mapped),
        _ => return Ok(None),
    };
    let is_used = stacks::in_padding(frozen, memory, &maps, &book);
    left.changed = restore(memory, &book, |edit| !edit.is_padding())?;
    if !is_used {
        left.changed.extend(restore(memory, &book, Edit::is_padding)?);
    }
    left.inside = stacks::inside(frozen, memory, &maps, &book);
    Ok(Some((book, !is_used)))
}

/// Puts back what is `wanted`, the last change first, and says what isn't as it was left.
fn restore(memory: &Memory, book: &Book, wanted: impl Fn(&Edit) -> bool) -> io::Result<Vec<u64>> {
    let mut changed = Vec::new();
    for edit in book.edits.iter().rev().filter(|edit| wanted(edit)) {
        let mut found = vec![0; edit.old.len()];
        // The object may have gone.
        if memory.read(edit.at, &mut found).is_err() || found == edit.old {
            continue;
        }
        if found == edit.new {
            memory.write(edit.at, &edit.old)?;
        } else if !is_reloaded(edit, &found) {
            changed.push(edit.at);
        }
    }
    Ok(changed)
}

/// Whether what is at an edit's place has nothing to do with it: another object was loaded there.
fn is_reloaded(edit: &Edit, found: &[u8]) -> bool {
    // A jump of ours has the same first byte whoever changed the rest.
    found.first() != edit.new.first()
}

/// Has one thread unmap all that is the agent's, the session's memory and the ledger last: by these it is known that there is
/// something. The others go on at once: no way leads there any more.
fn unmap(pid: u32, frozen: Frozen, memory: &Memory, book: &Book, agent: Agent<'_>) -> io::Result<u64> {
    let maps = mappings(pid);
    let found = maps.and_then(|maps| {
        Ok((Instructions::find(memory, &maps, |line| !book.holds(line.range.start))?, maps))
    });
    let (instructions, maps) = match found {
        Ok(found) => found,
        Err(error) => {
            frozen.let_go();
            return Err(error);
        }
    };
    let has_room = |registers: &Registers| is_on_own_stack(registers, &maps);
    let suits = |registers: &Registers| has_room(registers) && !registers.is_resumed();
    let Some(last) = frozen.let_others_go(suits) else { return Ok(0) };
    let room = last.registers().is_ok_and(|registers| has_room(&registers));
    let mut borrowed = Borrowed::new(last, instructions, memory, room)?;
    let (ledger, sessions) = match agent {
        Agent::Whole(place) => (Some(place.ledger), place.sessions(&maps)),
        Agent::Begun(_) => (None, Vec::new()),
    };
    let is_session = |held: &Held| {
        sessions.iter().any(|session| session.start < held.range.end && held.range.start < session.end)
    };
    let mut ranges = Vec::new();
    let mut image = None;
    for held in &book.mappings {
        if ledger.is_some_and(|ledger| held.range.contains(&ledger)) {
            image = Some(held.range.clone());
        } else if is_session(held) {
            // What there is of it is known better.
            forget(memory, held);
        } else {
            ranges.push((held.range.clone(), Some(held)));
        }
    }
    ranges.extend(sessions.into_iter().chain(image).map(|range| (range, None)));
    let mut failed = None;
    let mut bytes = 0;
    for (range, held) in ranges {
        if let Some(held) = held {
            forget(memory, held);
        }
        let len = range.end - range.start;
        match borrowed.call(libc::SYS_munmap, [range.start, len, 0, 0, 0, 0]) {
            Ok(_) => bytes += len,
            Err(error) => failed = Some(error),
        }
    }
    borrowed.give_back(memory)?;
    failed.map_or(Ok(bytes), Err)
}

/// Strikes a mapping out of the ledger before it is unmapped: whoever comes after us, should we be killed, would unmap what
/// the program has there by then.
fn forget(memory: &Memory, held: &Held) {
    if held.entry != 0 {
        let _ = memory.write(held.entry, &0u64.to_ne_bytes());
    }
}
