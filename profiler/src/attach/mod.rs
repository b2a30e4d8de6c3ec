//! `grapnel attach` and `grapnel detach`: recording a process that runs already, for as long as one likes.
//!
//! - `target`: what a process is, and why it can't be attached to; `rights`: why it can't be traced; `remedies`: what helps where
//!   it has no room; `linked`: what its file says, of a static program above all
//! - `tracee`: a thread that is traced; `freeze`: all of them; `working`: threads that make system calls for us
//! - `before`: what the process had allocated by then
//! - `image`: the agent, for an address; `enter`: the way in; `entered`: until it is at work
//! - `loader`: what the dynamic linker does meanwhile
//! - `names`: those of functions, where files lie elsewhere
//! - `found`: a session's memory in a process
//! - `book`: what the agent has done; `stacks`: where threads are; `leave`: the way out; `detach`: out of all processes
//! - `waiting`: for a reason to end; `guard`: who sees to it that there is one when grapnel is killed
//! - `x86_64`, `aarch64`: what depends on the instruction set, the same files for each
//!
//! All tracing is done by the main thread: the kernel has a tracer be a thread, not a process.

#[cfg(any(test, target_arch = "aarch64"))]
#[cfg_attr(not(target_arch = "aarch64"), expect(dead_code, reason = "another machine's, for its tests"))]
mod aarch64;
mod alarm;
mod before;
mod book;
mod detach;
mod enter;
mod entered;
mod found;
mod freeze;
mod guard;
mod image;
mod leave;
mod linked;
mod loader;
mod memory;
mod names;
mod reaping;
mod remedies;
mod rights;
mod stacks;
mod target;
mod tracee;
mod waiting;
mod working;
#[cfg(target_arch = "x86_64")]
mod x86_64;

// The one place where an instruction set is chosen.
#[cfg(target_arch = "aarch64")]
use aarch64 as native;
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

pub(crate) use book::own_mappings;
pub(crate) use detach::{DetachArgs, detach};
pub(crate) use freeze::begin_call_anew;
pub(crate) use native::UnderWay;

use crate::control::{Dumps, Server};
use crate::opened::say;
use crate::push::{PushArgs, PushError, Pushing, Ready};
use crate::run::agent_file::MemoryFile;
use crate::run::drain::{Drain, Orders, Outcome, Progress};
use crate::run::identity::{self, ProcessId};
use crate::run::limits::{Limits, explain};
use crate::run::process::Process;
use crate::run::shared::{Session, futex_wake};
use crate::run::signals::OnSignal;
use crate::run::snapshots::SnapshotOptions;
use crate::run::summary::{self, End};
use crate::run::{progress, spawn, trace_file};
use crate::serve::{Listening, ServeArgs, ServeError};
use crate::whole_file::true_file;
use before::Wanted;
use clap::Args;
use enter::{EnterError, enter};
use entered::{Entered, Older, Stood};
use freeze::Freezer;
use grapnel_analysis::report::words::{counted, harmless, human_bytes};
use grapnel_trace::shared::{failure, session_flags};
use guard::Guard;
use leave::{LeaveError, Place};
use memory::Memory;
use names::OtherRoot;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use target::{Target, TargetError};
use waiting::{Signals, Waited};

/// Exit status when nothing was changed in the process.
const NOT_ATTACHED: u8 = 125;
/// How often it is looked whether there is a reason to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Options of `grapnel attach`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AttachArgs {
    /// The trace to write [default: NAME.PID.grapnel in the current directory, NAME.PID.2.grapnel and so on if that is there]
    #[arg(short, long, value_name = "TRACE", value_parser = true_file())]
    output: Option<PathBuf>,
    /// Record for so long, then detach [default: until Ctrl-C, or the process's end]
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// No progress line and no summary
    #[arg(short, long)]
    quiet: bool,
    /// Record the process only, not the children that it forks from now on
    #[arg(long)]
    no_follow: bool,
    /// Drop events, and count them, rather than let the process wait when grapnel can't keep up
    #[arg(long)]
    drop: bool,
    /// The most frames that a stack keeps; the rest is cut off at its root, and marked
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    max_frames: u32,
    /// Whether to find what was allocated before, for which the process stands still
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    before: Wanted,
    /// Attach although a filter for system calls (seccomp) may kill the process for what the agent does
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    push: PushArgs,
    #[command(flatten)]
    snapshots: SnapshotOptions,
    /// The process
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: u32,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "not a number of seconds".into())
}

/// Why nothing was recorded, or how the end went wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Enter(#[from] EnterError),
    #[error(transparent)]
    Leave(#[from] LeaveError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Push(#[from] PushError),
    #[error("{path}: the trace can't be written: {error}; choose another place with -o")]
    Output { path: String, error: io::Error },
    #[error("{what}: {error}")]
    System { what: &'static str, error: io::Error },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> AttachError {
    move |error| AttachError::System { what, error }
}

impl AttachError {
    pub(crate) fn exit_code(&self) -> u8 {
        if matches!(self, Self::Leave(_)) { 1 } else { NOT_ATTACHED }
    }
}

/// The most traces of one process that get a name by themselves.
const MAX_TRACES: u32 = 10_000;
/// How often it is begun anew with a process that has become another program before anything of it was touched.
const TRIES: usize = 5;

/// Records a process until it is detached from or ends.
pub(crate) fn run(args: &AttachArgs) -> Result<ExitCode, AttachError> {
    let mut prepares = Prepares::WhileItRuns;
    for _ in 1..TRIES {
        match run_once(args, prepares) {
            Err(AttachError::Enter(EnterError::Changed(_))) => {}
            Err(AttachError::Enter(EnterError::Loading(_))) => prepares = Prepares::WhileItStands,
            recorded => return recorded,
        }
    }
    run_once(args, prepares)
}

/// When the agent looks at what is loaded, and prepares its hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prepares {
    WhileItRuns,
    /// Where it has opened or closed libraries meanwhile: so none of its threads runs.
    WhileItStands,
}

fn run_once(args: &AttachArgs, prepares: Prepares) -> Result<ExitCode, AttachError> {
    let target = Target::look(args.pid, args.force)?;
    let outlets = (args.serve.listen()?, args.push.prepare(&target.name())?);
    let process = Process::open(args.pid).ok_or(TargetError::NoProcess(args.pid))?;
    let mut guard =
        Guard::start(args.pid, &process).map_err(system("a process to guard this one can't be started"))?;
    Limits::raise();
    // One that can't be looked at has no names that could be found.
    let root = OtherRoot::of(args.pid).unwrap_or_default();
    let name = target.name();
    let (path, output, existed) = match &args.output {
        Some(path) => {
            let existed = path.symlink_metadata().is_ok();
            (path.clone(), opened(path)?, existed)
        }
        None => {
            let (path, output) = new_trace(&spawn::short_name(&name), args.pid)?;
            (path, output, false)
        }
    };
    let signals = Signals::block(args.snapshots.number());
    let recorded =
        record(args, prepares, (&target, &process), &mut guard, (output, &path), &signals, outlets);
    if recorded.is_err() && !existed {
        // It was made for what was never recorded.
        let _ = std::fs::remove_file(&path);
    }
    drop(guard);
    let Recorded { outcome, end, left, pushing } = recorded?;
    if let Some(root) = root {
        root.name(&path, args.quiet);
    }
    summary::print(args.quiet, &path, &name, args.pid, end, &outcome);
    if let Some(pushing) = pushing {
        pushing.finish(args.quiet, &path, || signals.wait(Duration::ZERO) == Waited::Ending);
    }
    left?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the file that a trace goes to.
fn opened(path: &Path) -> Result<File, AttachError> {
    trace_file::open(path).and_then(locked).map_err(|error| output_error(path, error))
}

/// Makes a trace of a process that may have been recorded here before: what is there stays.
fn new_trace(name: &str, pid: u32) -> Result<(PathBuf, File), AttachError> {
    let first = PathBuf::from(format!("{name}.{pid}.grapnel"));
    let others = (2..=MAX_TRACES).map(|number| PathBuf::from(format!("{name}.{pid}.{number}.grapnel")));
    let mut taken = io::ErrorKind::AlreadyExists.into();
    for path in std::iter::once(first.clone()).chain(others) {
        match trace_file::create(&path).and_then(locked) {
            Ok(output) => return Ok((path, output)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
            Err(error) => return Err(output_error(&path, error)),
        }
    }
    Err(output_error(&first, taken))
}

/// Two recordings into one file would spoil it.
fn locked(output: File) -> io::Result<File> {
    match output.try_lock() {
        Err(std::fs::TryLockError::WouldBlock) => Err(io::Error::other("another recording goes there")),
        _ => Ok(output),
    }
}

fn output_error(path: &Path, error: io::Error) -> AttachError {
    AttachError::Output { path: path.display().to_string(), error }
}

/// What a recording came to.
#[derive(Debug)]
struct Recorded {
    outcome: Outcome,
    end: End,
    /// Whether the agent is out of the process.
    left: Result<(), LeaveError>,
    /// The last profiles are still to be sent.
    pushing: Option<Pushing>,
}

/// Attaches, drains until there is a reason to end, detaches.
fn record(
    args: &AttachArgs,
    prepares: Prepares,
    (target, process): (&Target, &Process),
    guard: &mut Guard,
    (output, path): (File, &Path),
    signals: &Signals,
    (listening, pushing): (Option<Listening>, Option<Ready>),
) -> Result<Recorded, AttachError> {
    let freezer = &mut Freezer::new(target.pid);
    let (mut entered, file) = enter(target, freezer, guard)?;
    guard.tell(entered.place);
    let mut flags = 0;
    for (set, flag) in [(!args.no_follow, session_flags::FOLLOW), (args.drop, session_flags::DROP)] {
        flags |= if set { flag } else { 0 };
    }
    let memory = MemoryFile { file, path: String::new() };
    let session = match Session::in_memory(memory, "", flags, args.max_frames, None) {
        Ok(session) => session,
        Err(error) => {
            give_up(entered, freezer);
            return Err(system("the memory shared with the process can't be made")(explain(error)));
        }
    };
    let (dumps, writing) = Dumps::start(args.quiet);
    let orders = Orders { dumps: Some(dumps.clone()), ..Orders::default() };
    let shown = Progress::default();
    orders.desk.open();
    let server = Server::start(&orders.desk)
        .map_err(|error| say(&format!("note: no control of this recording: {error}")));
    let recorded = std::thread::scope(|scope| {
        let (owned_send, owned) = std::sync::mpsc::channel();
        let program = ProcessId::in_namespace(target.namespace, target.inner_pid);
        let totals = !args.quiet || args.serve.is_wanted() || args.snapshots.need_totals();
        let drain = Drain::new(&session, &shown, &orders, program, output, path.to_owned(), totals);
        let session = &session;
        let drain = std::thread::Builder::new().name("drain".into()).spawn_scoped(scope, move || {
            let _ = owned_send.send(session.own());
            drain.run(None)
        });
        let drain = match drain {
            Ok(drain) => drain,
            Err(error) => {
                give_up(entered, freezer);
                return Err(system("a thread for the drain can't be started")(error));
            }
        };
        let over = || {
            orders.detached.store(true, Ordering::Release);
            orders.over.store(true, Ordering::Release);
            session.header().wake.fetch_add(1, Ordering::AcqRel);
            futex_wake(&session.header().wake);
        };
        let owned = owned.recv().unwrap_or_else(|_| Err(io::Error::other("the drain did not start")));
        let begun = owned.map_err(system("the drain can't be started"));
        // The drain stops no thread of the process before.
        let turn = orders.turn.lock();
        let begun = begun.and_then(|()| {
            begin(target, &mut entered, session, freezer, &orders, (args.before, prepares))
                .map_err(AttachError::from)
        });
        let stood = match begun {
            Ok(stood) => stood,
            Err(error) => {
                give_up(entered, freezer);
                over();
                return Err(error);
            }
        };
        drop(turn);
        let since = Instant::now();
        let place = entered.place;
        let memory = entered.finish();
        if !args.quiet {
            tell(target, &stood);
        }
        args.snapshots.start(&orders.desk, &dumps, target.pid);
        if let Some(listening) = listening {
            say(&format!("serving at http://{}/", listening.address()));
            listening.start(&orders.desk);
        }
        let pushing = pushing.map(|ready| ready.start(&orders.desk));
        let show = || progress::show(&shown, &orders);
        let line =
            (!args.quiet).then(|| std::thread::Builder::new().spawn_scoped(scope, show)).and_then(Result::ok);
        // What no clock comes to is no end.
        let deadline = args.time.and_then(|time| since.checked_add(time));
        let on = args.snapshots.signal(&orders.desk, Some(&dumps));
        let end = wait(process, session, &memory, place, freezer, deadline, (signals, on));
        let turn = orders.turn.lock();
        let left = detach::end_of(end, target.pid, session, place, freezer, &memory, args.quiet);
        if let End::Exit(exit) = end
            && let Ok(mut program_exit) = orders.program_exit.lock()
        {
            *program_exit = Some((exit, 0));
        }
        orders.left.store(matches!(end, End::Detached | End::Taken), Ordering::Release);
        over();
        drop(turn);
        if let Some(line) = line {
            line.thread().unpark();
        }
        drop(server);
        let fault = |_| system("the drain ended early")(io::Error::other("a fault in grapnel itself"));
        let outcome = drain.join().map_err(fault)?;
        Ok(Recorded { outcome, end, left, pushing })
    });
    orders.desk.close();
    writing.finish();
    recorded
}

/// Takes out what had come in, of children too that were forked meanwhile.
fn give_up(entered: Entered, freezer: &mut Freezer) {
    let place = entered.place;
    if let Err(error) = entered.give_up(freezer) {
        say(&error.to_string());
    }
    detach::leave_others(leave::Agent::Whole(place), Vec::new(), true);
}

/// Says that the recording has begun.
fn tell(target: &Target, stood: &Stood) {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let attached = format!(
        "attached to {} (pid {}): {} stood still for {:.1} ms",
        target.name().to_string_lossy(),
        target.pid,
        counted(stood.threads as u64, "thread"),
        ms(stood.time),
    );
    match &stood.before {
        Ok(Older { blocks, bytes, within }) => {
            say(&format!(
                "{attached}, for {:.1} of them to find {} of before, with {}",
                ms(stood.look),
                counted(*blocks, "block"),
                human_bytes(*bytes)
            ));
            if *within != 0 {
                let of = counted(*within, "block");
                say(&format!(
                    "note: of {of} among them the program may use less than is counted: mimalloc doesn't say where in a block it has begun for an alignment's sake",
                ));
            }
            if stood.busy {
                say(
                    "note: threads were in the middle of malloc all the time; of each a block may be counted wrongly",
                );
            }
        }
        Err(unknown) => {
            say(&attached);
            say(&format!("note: what was allocated before isn't known: {unknown}"));
        }
    }
}

/// Has the agent prepare, tells the trace what it is of, and has the hooks go in.
fn begin(
    target: &Target,
    entered: &mut Entered,
    session: &Session,
    freezer: &mut Freezer,
    orders: &Orders,
    (wanted, prepares): (Wanted, Prepares),
) -> Result<Stood, EnterError> {
    let message = || {
        let segment = session.segment(0).ok()?;
        let code = segment.header().failure.load(Ordering::Acquire);
        let text = identity::text(&segment.header().message);
        let text = String::from_utf8_lossy(text.strip_suffix(b"\0").unwrap_or(&text)).into_owned();
        (code != 0 && code != failure::NOTE).then(|| harmless(&text).into_owned())
    };
    let standing = match prepares {
        Prepares::WhileItRuns => None,
        Prepares::WhileItStands => Some(entered.stand(freezer)?),
    };
    if let Err(error) = entered.prepare(freezer, standing.is_some(), message) {
        if let Some((frozen, _)) = standing {
            frozen.let_go();
        }
        return Err(error);
    }
    if let Ok(segment) = session.segment(0) {
        let header = segment.header();
        header.arguments.store(target.command.len() as u32, Ordering::Relaxed);
        header.command.set(target.command.iter().map(Vec::as_slice));
        header.executable.set([target.executable.as_os_str().as_bytes()]);
    }
    entered.commit(freezer, standing, wanted, message, |blocks| {
        if let Ok(mut before) = orders.before.lock() {
            *before = Some(blocks);
        }
    })
}

/// Waits for a reason to end.
fn wait(
    process: &Process,
    session: &Session,
    memory: &Memory,
    place: Place,
    freezer: &mut Freezer,
    deadline: Option<Instant>,
    (signals, on): (&Signals, Option<OnSignal>),
) -> End {
    loop {
        freezer.tend();
        if process.has_ended() {
            // How is known when its parent has asked.
            std::thread::sleep(Duration::from_millis(20));
            return process.exit().map_or(End::Ended, End::Exit);
        }
        if session.header().stopped.load(Ordering::Acquire) != 0 {
            return End::Taken;
        }
        if memory.word(place.ledger).is_err() {
            // One that ends has no memory before it has ended.
            std::thread::sleep(Duration::from_millis(50));
            if !process.has_ended() {
                return End::Exec;
            }
            continue;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return End::Detached;
        }
        match (signals.wait(left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY))), &on) {
            (Waited::Ending, _) => return End::Detached,
            (Waited::Stopping, _) => {
                say("note: grapnel goes on, since the process would soon wait for it; Ctrl-C detaches")
            }
            (Waited::Other, Some(on)) => (on.work)(),
            _ => {}
        }
    }
}
