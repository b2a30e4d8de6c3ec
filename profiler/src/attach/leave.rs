//! The way out, from outside: no line of the agent runs for it.
//!
//! While all threads stand, what was changed is put back as it was. A call that is in the agent then goes on to its end, so
//! threads are looked at again until none is inside. Then one thread unmaps what the agent mapped.
//!
//! A thread is inside if it runs the agent's code or stands on a stack of the agent's; if its stack holds an address in the
//! agent's stubs, from which every call into the agent is made and which wipe that address out when the call has come
//! back; or if a signal interrupted it at such a place.

use super::book::{Book, Edit};
use super::freeze::{FreezeError, Freezer, Frozen};
use super::memory::Memory;
use super::stacks;
use super::target::mappings;
use super::tracee::WORKING;
use super::working::{Borrowed, instruction};
use std::io;
use std::time::{Duration, Instant};

/// The longest that threads are waited for to come out of the agent.
const PATIENCE: Duration = Duration::from_secs(10);

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
    ledger: u64,
) -> Result<Left, LeaveError> {
    let mut left = Left::default();
    let deadline = Instant::now() + PATIENCE;
    let mut nap = Duration::from_millis(1);
    let mut restored = false;
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
        let looked = look(pid, &frozen, memory, ledger, &mut left, &mut restored);
        let (book, inside) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                frozen.let_go();
                // The file of an address space that is gone reads as empty.
                let gone = memory.word(ledger).is_err();
                return Err(if gone { LeaveError::Gone(pid) } else { LeaveError::System { pid, error } });
            }
        };
        left.inside = inside;
        let is_over = Instant::now() > deadline;
        if inside == 0 && restored && left.changed.is_empty() {
            let unmapped = unmap(pid, frozen, memory, &book);
            left.stood = left.stood.max(since.elapsed());
            left.unmapped = unmapped.map_err(|error| LeaveError::System { pid, error })?;
            return Ok(left);
        }
        frozen.let_go();
        left.stood = left.stood.max(since.elapsed());
        if is_over || !left.changed.is_empty() {
            left.kept = book.mappings.iter().map(|mapping| mapping.end - mapping.start).sum();
            return Ok(left);
        }
        std::thread::sleep(nap);
        nap = (2 * nap).min(Duration::from_millis(50));
    }
}

/// Puts back what was changed, if that can be now, and counts who is inside.
fn look(
    pid: u32,
    frozen: &Frozen,
    memory: &Memory,
    ledger: u64,
    left: &mut Left,
    restored: &mut bool,
) -> io::Result<(Book, usize)> {
    let book = Book::read(memory, ledger)?;
    let maps = mappings(pid)?;
    if !*restored && !stacks::in_padding(frozen, memory, &maps, &book) {
        left.changed = restore(memory, &book)?;
        *restored = true;
    }
    let inside = if *restored { stacks::inside(frozen, memory, &maps, &book) } else { frozen.len() };
    Ok((book, inside))
}

/// Puts everything back, the last change first, and says what isn't as it was left.
fn restore(memory: &Memory, book: &Book) -> io::Result<Vec<u64>> {
    let mut changed = Vec::new();
    for edit in book.edits.iter().rev() {
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

/// Has one thread unmap all that is the agent's. The others go on at once: no way leads there any more.
fn unmap(pid: u32, frozen: Frozen, memory: &Memory, book: &Book) -> io::Result<u64> {
    let instruction = instruction(memory, &mappings(pid)?, |line| !book.holds(line.range.start))?;
    let Some(last) = frozen.let_others_go() else { return Ok(0) };
    last.set_options(WORKING)?;
    let mut borrowed = Borrowed::new(last, instruction)?;
    let mut failed = None;
    let mut bytes = 0;
    for mapping in &book.mappings {
        let len = mapping.end - mapping.start;
        match borrowed.call(libc::SYS_munmap, [mapping.start, len, 0, 0, 0, 0]) {
            Ok(_) => bytes += len,
            Err(error) => failed = Some(error),
        }
    }
    borrowed.give_back()?;
    failed.map_or(Ok(bytes), Err)
}
