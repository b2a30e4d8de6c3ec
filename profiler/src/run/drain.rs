//! The drain: finds processes as they join the session, empties their rings, ends their traces.

mod asked;

use super::identity::{ProcessId, describe};
use super::recording::{Before, Finished, Recording};
use super::scans::Scans;
use super::shared::{LIMIT, Segment, Session, futex_wait};
use super::spawn::short_name;
use super::trace_file::create_new;
use crate::control::{Desk, Dumps};
use crate::leaks::Wanted;
use grapnel_trace::event::VIA_GOT;
use grapnel_trace::shared::{segment_state, session_flags};
use grapnel_trace::{Exit, Mark};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The longest that a wake-up may be missed by: also the trace's resolution of time.
const NAP_NS: libc::c_long = 10_000_000;
/// The same while a process stands still.
const SHORT_NAP_NS: libc::c_long = 100_000;
/// So many words in one pass are worth looking again at once.
const BUSY_WORDS: usize = 8192;
/// Processes that may be between taking a segment and announcing it.
const EXPECTED: usize = 4096;
/// How long to stay for execs that are under way when PROGRAM ends.
const EXEC_PATIENCE: Duration = Duration::from_millis(100);
/// Naps between two checks of whether processes have ended.
const TOLD_EVERY: u32 = 4;

/// What the drain tells the other threads while it runs.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) events: AtomicU64,
    pub(crate) live_bytes: AtomicU64,
    pub(crate) processes: AtomicU64,
}

/// What the other threads tell the drain.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// PROGRAM's end, once it was reaped, and its processor time in nanoseconds.
    pub(crate) program_exit: Mutex<Option<(Exit, u64)>>,
    /// Nothing more is to be waited for.
    pub(crate) over: AtomicBool,
    /// The agent was taken out of all processes: what they do from now on is not to be recorded.
    pub(crate) detached: AtomicBool,
    /// And they go on.
    pub(crate) left: AtomicBool,
    /// What clients ask for.
    pub(crate) desk: Arc<Desk>,
    /// Whose turn it is to stop processes that go on: the kernel lets one thread trace.
    pub(crate) turn: Mutex<()>,
    /// Where snapshots go that nobody waits for.
    pub(crate) dumps: Option<Dumps>,
    /// Of a process that ran already: what it had allocated before. It is there before its first event.
    pub(crate) before: Mutex<Option<Before>>,
}

/// The drain of a session.
#[derive(Debug)]
pub(crate) struct Drain<'a> {
    session: &'a Session,
    progress: &'a Progress,
    orders: &'a Orders,
    /// Whether the totals are shown.
    totals: bool,
    /// PROGRAM's process, and the file that its first trace goes to.
    program: ProcessId,
    output: Option<File>,
    path: PathBuf,
    seen: u32,
    /// Segments that were taken and not announced yet.
    expected: Vec<u32>,
    active: Vec<Recording>,
    finished: Vec<Finished>,
    /// How many traces there are of a process id, in whichever namespace: their names must differ.
    images: HashMap<u32, u32>,
    /// Is told when the agent is loaded by nobody any more, before what is left is written.
    unloaded: Option<Sender<()>>,
}

/// What a session leaves.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// In the order in which they ended.
    pub(crate) recordings: Vec<Finished>,
    /// Processes that were still running when PROGRAM ended.
    pub(crate) running: usize,
    /// Processes that could not be followed.
    pub(crate) unfollowed: u32,
    /// Why PROGRAM itself was not recorded, if the agent said so.
    pub(crate) refused: Option<String>,
}

impl<'a> Drain<'a> {
    pub(crate) fn new(
        session: &'a Session,
        progress: &'a Progress,
        orders: &'a Orders,
        program: ProcessId,
        output: File,
        path: PathBuf,
        totals: bool,
    ) -> Self {
        Self {
            session,
            progress,
            orders,
            totals,
            program,
            output: Some(output),
            path,
            seen: 0,
            expected: Vec::new(),
            active: Vec::new(),
            finished: Vec::new(),
            images: HashMap::new(),
            unloaded: None,
        }
    }

    /// With somebody to tell when the agent is loaded by nobody any more. Who isn't told keeps it until the end.
    pub(crate) fn telling(self, unloaded: Sender<()>) -> Self {
        Self { unloaded: Some(unloaded), ..self }
    }

    /// Drains until PROGRAM is over.
    pub(crate) fn run(mut self, leaks: Option<Wanted>) -> Outcome {
        let header = self.session.header();
        let session = (self.session.inode(), header.ledger.load(Ordering::Relaxed));
        let mut scans = Scans::new(leaks, session, &self.orders.turn);
        let mut refused = None;
        let mut naps = 0;
        loop {
            let over = self.orders.over.load(Ordering::Acquire);
            let wake = header.wake.load(Ordering::Acquire);
            self.discover(&mut refused);
            let words: usize = self.active.iter_mut().map(Recording::drain).sum();
            if words != 0 {
                self.tell();
            }
            scans.see_to(&mut self.active);
            self.answer(&mut scans);
            self.dump_wishes();
            if over {
                self.stop_loading();
                self.end_dead();
                break;
            }
            if words >= BUSY_WORDS {
                continue;
            }
            naps += 1;
            if naps % TOLD_EVERY == 0 {
                self.end_dead();
            }
            header.asleep.store(1, Ordering::SeqCst);
            futex_wait(&header.wake, wake, if scans.are_urgent() { SHORT_NAP_NS } else { NAP_NS });
            header.asleep.store(0, Ordering::Relaxed);
        }
        self.stop(refused)
    }

    /// From now on no process gets the agent but those whose exec is under way, and none that goes on is recorded.
    fn stop_loading(&mut self) {
        let header = self.session.header();
        header.stopped.store(1, Ordering::SeqCst);
        // Who counts itself looks for that afterwards: one of the two sees the other.
        fence(Ordering::SeqCst);
        // Where it is dropped unsaid, who waits for it goes on without.
        let unloaded = self.unloaded.take();
        if header.execs.load(Ordering::Acquire) == 0
            && let Some(unloaded) = unloaded
        {
            let _ = unloaded.send(());
        }
    }

    /// Ends what still runs.
    fn stop(mut self, refused: Option<String>) -> Outcome {
        let header = self.session.header();
        let detached = self.orders.detached.load(Ordering::Acquire);
        let running = if detached { 0 } else { self.active.len() };
        if running != 0 {
            // Whoever was in the middle of an event finishes it.
            std::thread::sleep(Duration::from_millis(5));
        }
        self.active.iter().for_each(Recording::wake);
        let since = Instant::now();
        while header.execs.load(Ordering::Acquire) != 0 && since.elapsed() < EXEC_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        // PROGRAM ran, and the agent did not come up in it: an older trace must not be taken for its.
        if let Some(file) = self.output.take().filter(|_| self.program_exit().is_some()) {
            let _ = emptied(file);
        }
        let left = self.orders.left.load(Ordering::Acquire);
        for mut recording in std::mem::take(&mut self.active) {
            self.dump_last_wish(&mut recording);
            if left {
                recording.mark(Mark::Detached);
            }
            self.finished.push(recording.finish(None));
        }
        let unfollowed = header.unfollowed.load(Ordering::Relaxed);
        Outcome { recordings: self.finished, running, unfollowed, refused }
    }

    fn discover(&mut self, refused: &mut Option<String>) {
        let header = self.session.header();
        let taken = header.next_segment.load(Ordering::Acquire).clamp(self.seen, LIMIT);
        self.expected.extend(self.seen..taken);
        // No more than can be true at one moment; the oldest will not come any more.
        let surplus = self.expected.len().saturating_sub(EXPECTED);
        self.expected.drain(..surplus);
        self.seen = taken;
        // One that was taken may never be filled in: its process may have been killed just then.
        let mut index = 0;
        while let Some(&number) = self.expected.get(index) {
            if self.session.state_of(number) == segment_state::FREE {
                index += 1;
                continue;
            }
            self.expected.remove(index);
            match self.session.segment(number) {
                Ok(segment) => self.begin(number, segment, refused),
                Err(_) => {
                    header.unfollowed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn begin(&mut self, index: u32, segment: Segment, refused: &mut Option<String>) {
        let (id, mut info) = (ProcessId::of(&segment), describe(&segment));
        if self.session.header().flags.load(Ordering::Relaxed) & session_flags::GOT != 0 {
            info.recorder.extend_from_slice(VIA_GOT);
        }
        // A process has one image at a time: the last one ended with the exec.
        let was_paused = self.active.iter().any(|recording| recording.id == id && recording.is_paused());
        self.end_where(|recording| recording.id == id);
        self.forget_idle_image(id, info.pid);
        let image = self.images.entry(info.pid).or_insert(0);
        *image += 1;
        let (file, path) = match self.output.take() {
            // What was in it before goes only now that there is something to take its place.
            Some(file) if id == self.program => (emptied(file), self.path.clone()),
            output => {
                self.output = output;
                let path = child_path(&self.path, info.pid, *image, &info.command, &info.executable);
                (create_new(&path), path)
            }
        };
        let mut recording = Recording::new(index, *image, segment, &info, file, &path, self.totals);
        if id == self.program && *image == 1 && self.session.header().ledger.load(Ordering::Relaxed) != 0 {
            let before = self.orders.before.lock().ok().and_then(|mut before| before.take());
            before.inspect(|blocks| recording.begins_with(blocks));
            recording.mark(Mark::Attached);
        }
        recording.is_of_some(self.session.header().sample_bytes.load(Ordering::Relaxed));
        if was_paused {
            recording.pause(true);
        }
        if id == self.program && refused.is_none() {
            *refused = recording.failure();
        }
        self.active.push(recording);
        self.progress.processes.fetch_add(1, Ordering::Relaxed);
    }

    /// A child that did nothing between fork and exec leaves no trace of that time.
    fn forget_idle_image(&mut self, id: ProcessId, pid: u32) {
        let Some(last) = self.finished.last() else { return };
        let idle = last.events == 0 && last.totals.lost_events == 0;
        let image = last.image;
        if last.id == id && idle && last.path != self.path && last.problem.is_none() {
            let _ = std::fs::remove_file(&last.path);
            self.finished.pop();
            // Unless another process of that id, in another namespace, has come since.
            self.images.entry(pid).and_modify(|images| *images -= u32::from(*images == image));
        }
    }

    fn end_dead(&mut self) {
        let (program, ended) = (self.program, self.program_exit().is_some());
        self.end_where(|recording| if recording.id == program { ended } else { recording.has_ended() });
    }

    fn program_exit(&self) -> Option<(Exit, u64)> {
        self.orders.program_exit.lock().ok().and_then(|exit| *exit)
    }

    fn end_where(&mut self, ended: impl Fn(&Recording) -> bool) {
        let mut index = 0;
        while index < self.active.len() {
            if !ended(&self.active[index]) {
                index += 1;
                continue;
            }
            let mut recording = self.active.remove(index);
            self.dump_last_wish(&mut recording);
            let exit = if recording.id == self.program { self.program_exit() } else { None };
            let segment = recording.index;
            self.finished.push(recording.finish(exit));
            self.session.release(segment);
        }
    }

    fn tell(&self) {
        let events = self.active.iter().map(|recording| recording.events.all).sum::<u64>()
            + self.finished.iter().map(|finished| finished.events).sum::<u64>();
        let live = self.active.iter().map(|recording| recording.totals().live_bytes).sum();
        self.progress.events.store(events, Ordering::Relaxed);
        self.progress.live_bytes.store(live, Ordering::Relaxed);
    }
}

fn emptied(file: File) -> io::Result<File> {
    let facts = file.metadata()?;
    // Of a file that was cut, ext4 hands all that is written to the disk before its last close returns.
    if facts.is_file() && facts.len() != 0 {
        file.set_len(0)?;
    }
    Ok(file)
}

/// `base.grapnel` of PROGRAM gives `base.PID.NAME.grapnel` for another process; a later image of one process is
/// `base.PID-N.NAME.grapnel`.
fn child_path(base: &Path, pid: u32, image: u32, command: &[Vec<u8>], executable: &[u8]) -> PathBuf {
    let first = command.first().map_or(executable, Vec::as_slice);
    let name = short_name(OsStr::from_bytes(if executable.is_empty() { first } else { executable }));
    let stem = base.file_name().unwrap_or_default().as_bytes();
    let stem = stem.strip_suffix(b".grapnel").unwrap_or(stem);
    let mut file = OsStr::from_bytes(stem).to_owned();
    match image {
        1 => file.push(format!(".{pid}.{name}.grapnel")),
        _ => file.push(format!(".{pid}-{image}.{name}.grapnel")),
    }
    base.with_file_name(file)
}
