//! The way out, from outside: no line of the agent runs for it.
//!
//! While all threads stand, what was changed is put back as it was. A call that is in the agent then goes on to its end, so
//! threads are looked at again until none is inside. Then one thread unmaps what the agent mapped.
//!
//! A thread is inside if it runs the agent's code or stands on a stack of the agent's; if its stack holds an address in the
//! agent's stubs behind a call, from which every call into the agent is made and which wipe that address out when the call has come
//! back; or if a signal interrupted it at such a place. Without that call it is something else: a block that lay there before, as a large one whose
//! mapping was given back, is still named by what its program left on its stack.

use super::book::{Book, Edit, Held};
use super::found::{is_header, reserved, sessions, thread_code};
use super::freeze::{FreezeError, Freezer, Frozen, let_new_first_go};
use super::memory::Memory;
use super::native::Registers;
use super::stacks;
use super::target::{MapLine, mappings};
use super::working::{Borrowed, CODE_BYTES, Instructions, is_code, is_on_own_stack};
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The longest that threads are waited for to come out of the agent.
const PATIENCE: Duration = Duration::from_secs(10);

/// The mappings that the ledger tells of need not end with a page.
const PAGE: u64 = 4096;

/// Where a session's agent is: in the process, and by fork in its children.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The ledger's address.
    pub(crate) ledger: u64,
    /// The number of the session's memory, by which is known that the ledger is still there.
    pub(crate) inode: u64,
}

impl Place {
    /// Where the session's memory is mapped.
    fn sessions(&self, maps: &[MapLine]) -> Vec<Range<u64>> {
        sessions(maps, self.inode)
    }

    /// What the ledger says. `None` if nothing of the agent is in a process with these mappings. When all is on its way out
    /// the ledger is gone already: then all that is left are mappings of the session's memory.
    fn book(&self, memory: &Memory, maps: &[MapLine]) -> io::Result<Option<Book>> {
        let sessions = self.sessions(maps);
        Ok(match () {
            () if sessions.is_empty() => None,
            () if sessions.iter().any(|session| session.contains(&self.ledger)) => {
                Some(Book::mapped(sessions))
            }
            () => Some(Book::read(memory, self.ledger)?),
        })
    }
}

/// Whether these are mappings of what the file shows, not of a program that came after it.
fn is_its_memory(memory: &Memory, maps: &[MapLine]) -> bool {
    maps.iter().find(|line| line.readable).is_some_and(|line| memory.word(line.range.start).is_ok())
}

/// What there is of an agent before there is a ledger. Where it lies is looked at while all threads stand: what was unmapped
/// since may be the program's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Begun {
    /// Where the made thread's code was mapped, or was about to be.
    pub(crate) code: Option<u64>,
    /// The number of the session's memory.
    pub(crate) session: Option<u64>,
}

impl Begun {
    /// All that is mapped of it.
    fn ranges(&self, memory: &Memory, maps: &[MapLine]) -> Vec<Range<u64>> {
        let sessions = self.session.map(|inode| sessions(maps, inode)).unwrap_or_default();
        let begun: Vec<_> = sessions.iter().filter_map(|range| reserved(memory, maps, range)).collect();
        let told = self.code.map(|at| at..at.saturating_add(CODE_BYTES));
        let noted = begun.iter().filter_map(|range| thread_code(memory, range));
        let is_there = |page: &Range<u64>| {
            let is_it = |line: &MapLine| {
                line.range == *page && line.executable && line.inode == 0 && line.name.is_empty()
            };
            maps.iter().any(is_it) && is_code(memory, page.start)
        };
        let code: Vec<_> = told.into_iter().chain(noted).filter(is_there).collect();
        // The session's memory, by which the others are known, goes last.
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for found in code.into_iter().chain(begun).chain(sessions) {
            if !ranges.iter().any(|known| known.start < found.end && found.start < known.end) {
                ranges.push(found);
            }
        }
        ranges
    }
}

/// What is to be taken out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Agent {
    /// All that the ledger says.
    Whole(Place),
    /// Mappings: there is no ledger yet.
    Begun(Begun),
}

impl Agent {
    /// The number of the session's memory, if there is any.
    pub(crate) fn session(self) -> Option<u64> {
        match self {
            Self::Whole(place) => Some(place.inode),
            Self::Begun(begun) => begun.session,
        }
    }

    /// What there is of it in a process with these mappings, if it is still there.
    fn book(self, memory: &Memory, maps: &[MapLine]) -> io::Result<Option<Book>> {
        match self {
            Self::Whole(place) => place.book(memory, maps),
            // Nothing may be mapped yet: whoever is about to do it counts as inside.
            Self::Begun(begun) => {
                Ok(is_its_memory(memory, maps).then(|| Book::mapped(begun.ranges(memory, maps))))
            }
        }
    }

    /// Whether it went with the program. The file of an address space that is gone reads as empty.
    fn is_gone(self, memory: &Memory) -> bool {
        match self {
            Self::Whole(place) => memory.word(place.ledger).is_err(),
            Self::Begun(_) => true,
        }
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
    #[error(
        "process {0} has ended or has become another program, or another grapnel has taken the agent out of it"
    )]
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
    agent: Agent,
) -> Result<Left, LeaveError> {
    let left = leave_now(pid, freezer, memory, agent);
    if matches!(left, Err(LeaveError::Gone(_))) {
        // It may have become another program by a thread that was asked to stop.
        let_new_first_go(pid);
    }
    left
}

fn leave_now(pid: u32, freezer: &mut Freezer, memory: &Memory, agent: Agent) -> Result<Left, LeaveError> {
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
            Err(FreezeError::Busy(late)) => {
                let why = format!("after {} seconds {late}", PATIENCE.as_secs());
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
                let gone = agent.is_gone(memory);
                return Err(if gone { LeaveError::Gone(pid) } else { LeaveError::System { pid, error } });
            }
        };
        if !frozen.has_worker() {
            frozen.let_go();
            if Instant::now() > deadline {
                let why = "none of them was found in 64-bit code, where it could be borrowed".into();
                return Err(LeaveError::NoStop { pid, why });
            }
            std::thread::sleep(nap);
            nap = (2 * nap).min(Duration::from_millis(50));
            continue;
        }
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
    agent: Agent,
    left: &mut Left,
) -> io::Result<Option<(Book, bool)>> {
    let maps = mappings(pid)?;
    let Some(book) = agent.book(memory, &maps)? else { return Ok(None) };
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

/// Has one thread unmap all that is the agent's, and lets all go on. The others stand meanwhile: where more of them want to run
/// than there are processors, each of its calls would wait for its turn, with whatever it holds that they want.
fn unmap(pid: u32, mut frozen: Frozen, memory: &Memory, book: &Book, agent: Agent) -> io::Result<u64> {
    let unmapped = unmap_by_one(pid, &mut frozen, memory, book, agent);
    frozen.let_go();
    unmapped
}

fn unmap_by_one(
    pid: u32,
    frozen: &mut Frozen,
    memory: &Memory,
    book: &Book,
    agent: Agent,
) -> io::Result<u64> {
    let maps = mappings(pid)?;
    // Nothing goes: all others stand.
    let instructions = Instructions::find(memory, &maps, |line| !book.holds(line.range.start), |_| true)?;
    let has_room = |registers: &Registers| is_on_own_stack(registers, &maps);
    let suits = |registers: &Registers| has_room(registers) && !registers.is_resumed();
    let Some(worker) = frozen.take(suits) else { return Ok(0) };
    let room = worker.registers().is_ok_and(|registers| has_room(&registers));
    let mut leaving = Leaving {
        borrowed: Borrowed::new(worker, instructions, memory, room)?,
        memory,
        bytes: 0,
        failed: None,
    };
    match agent {
        Agent::Whole(place) => leaving.whole(pid, place, &maps, book),
        Agent::Begun(_) => {
            for held in &book.mappings {
                leaving.unmap(&held.range);
            }
        }
    }
    let Leaving { borrowed, bytes, failed, .. } = leaving;
    borrowed.give_back(memory)?;
    failed.map_or(Ok(bytes), Err)
}

/// A thread that unmaps.
struct Leaving<'m> {
    borrowed: Borrowed,
    memory: &'m Memory,
    bytes: u64,
    failed: Option<io::Error>,
}

impl Leaving<'_> {
    /// Should we be killed, whoever comes after us must find what is left, and nothing that isn't the agent's any more: the
    /// program may have mapped something there by then. So each mapping gives way to one of the session's memory, which is
    /// known by its number, the ledger's last; those that lie side by side together. Then those go, that in the ledger's place last: by it is known that the ledger
    /// says nothing any more.
    fn whole(&mut self, pid: u32, place: Place, maps: &[MapLine], book: &Book) {
        let sessions = place.sessions(maps);
        let is_session = |held: &&Held| {
            sessions.iter().any(|session| session.start < held.range.end && held.range.start < session.end)
        };
        let header = sessions.iter().find(|session| is_header(self.memory, session)).cloned();
        let has_ledger = |held: &&Held| held.range.contains(&place.ledger);
        let mut others: Vec<&Held> =
            book.mappings.iter().filter(|held| !has_ledger(held) && !is_session(held)).collect();
        others.sort_unstable_by_key(|held| held.range.start);
        for run in others.chunk_by(|one, next| follows(&one.range, &next.range)) {
            if self.replace(header.as_ref(), &(run[0].range.start..run[run.len() - 1].range.end)) {
                continue;
            }
            for held in run {
                note(self.memory, held, 0);
                if !self.unmap(&held.range) {
                    note(self.memory, held, held.range.start);
                }
            }
        }
        // By these whoever tries again finds it.
        if self.failed.is_some() {
            return;
        }
        let ledger = book.mappings.iter().find(has_ledger).filter(|held| !is_session(held));
        let ledger = ledger.filter(|held| !self.replace(header.as_ref(), &held.range));
        if ledger.is_some() {
            // What there is of the session is known without it.
            book.mappings.iter().filter(is_session).for_each(|held| note(self.memory, held, 0));
        }
        let mut sessions = mappings(pid).map_or(sessions, |maps| place.sessions(&maps));
        let is_last = |session: &Range<u64>| session.contains(&place.ledger);
        sessions.sort_unstable_by_key(|session| (is_last(session), session.start));
        for run in sessions.chunk_by(|one, next| !is_last(next) && follows(one, next)) {
            self.unmap(&(run[0].start..run[run.len() - 1].end));
        }
        if let Some(held) = ledger {
            self.unmap(&held.range);
        }
    }

    /// Has the session's memory lie where a mapping of the agent's does. False if it can't.
    fn replace(&mut self, header: Option<&Range<u64>>, range: &Range<u64>) -> bool {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        // Of what is shared a length of 0 makes another mapping.
        let another = |header: &Range<u64>| [header.start, 0, range.end - range.start, flags, range.start, 0];
        header.is_some_and(|header| self.borrowed.call(libc::SYS_mremap, another(header)).is_ok())
    }

    fn unmap(&mut self, range: &Range<u64>) -> bool {
        let len = range.end - range.start;
        match self.borrowed.call(libc::SYS_munmap, [range.start, len, 0, 0, 0, 0]) {
            Ok(_) => {
                self.bytes += len;
                true
            }
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }
}

/// Whether one mapping begins where another ends: one call does for both, and each call is a way to the thread and back.
fn follows(one: &Range<u64>, next: &Range<u64>) -> bool {
    one.end.next_multiple_of(PAGE) == next.start
}

/// Says in the ledger where a mapping begins: 0 strikes it out, before it is unmapped.
fn note(memory: &Memory, held: &Held, start: u64) {
    if held.entry != 0 {
        let _ = memory.write(held.entry, &start.to_ne_bytes());
    }
}
