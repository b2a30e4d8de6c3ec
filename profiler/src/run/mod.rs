//! `grapnel run`: starts a program with the agent in it and writes down what it allocates.

pub(crate) mod agent_file;
mod clock;
pub(crate) mod drain;
pub(crate) mod identity;
mod intake;
pub(crate) mod limits;
mod merge;
mod meter;
mod nodes;
mod output;
pub(crate) mod process;
mod program;
pub(crate) mod progress;
mod queue;
pub(crate) mod recording;
mod relatives;
mod scans;
pub(crate) mod shared;
pub(crate) mod signals;
pub(crate) mod snapshots;
pub(crate) mod spawn;
mod standing;
pub(crate) mod summary;
mod timers;
pub(crate) mod trace_file;
mod wait;

use crate::control::{Dumps, Server};
use crate::leaks::PolicyArgs;
use crate::opened::say;
use crate::push::{PushArgs, PushError};
use crate::serve::{ServeArgs, ServeError};
use crate::whole_file::true_file;
use clap::Args;
use drain::{Drain, Orders, Outcome, Progress};
use grapnel_trace::Exit;
use grapnel_trace::shared::session_flags;
use identity::ProcessId;
use limits::{Limits, explain};
use program::{Program, ProgramError};
use shared::Session;
use snapshots::SnapshotOptions;
use spawn::{AsItWas, Waiting};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use summary::End;
use timers::Timers;

const NO_AGENT: &str = "the agent can't be put into memory";

/// Exit status when grapnel itself fails before PROGRAM starts, as `env` and `timeout` have it.
const OWN_FAILURE: u8 = 125;

/// Options of `grapnel run`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// The trace to write [default: NAME.PID.grapnel in the current directory]
    ///
    /// A child process's trace goes beside it: TRACE without `.grapnel`, then `.PID.NAME.grapnel`.
    #[arg(short, long, value_name = "TRACE", value_parser = true_file())]
    output: Option<PathBuf>,
    /// No progress line and no summary
    #[arg(short, long)]
    quiet: bool,
    /// Record PROGRAM only, not the processes that it starts
    #[arg(long)]
    no_follow: bool,
    /// When PROGRAM has ended, go on until all processes that it started have ended too
    #[arg(long)]
    wait: bool,
    /// Drop events, and count them, rather than let the program wait when grapnel can't keep up
    #[arg(long)]
    drop: bool,
    /// The most frames that a stack keeps; the rest is cut off at its root, and marked
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    max_frames: u32,
    /// How calls are noticed: by a change in the functions' code, or in the tables of addresses by which objects call them
    ///
    /// The latter is for functions whose code can't be changed, and doesn't see all calls: docs/via-got.md tells which.
    #[arg(long, value_enum, value_name = "WAY", default_value_t = Via::Inline)]
    via: Via,
    /// Load the agent and leave it off: nothing is hooked, and nothing recorded, in PROGRAM and in what it starts
    ///
    /// For finding out whether a program minds the agent's presence, and what that costs.
    #[arg(long, conflicts_with_all = ["drop", "sample", "budget"])]
    off: bool,
    /// Record only some allocations: on average one in each BYTES that a thread allocates
    ///
    /// An allocation of S bytes is recorded with probability 1 - exp(-S / BYTES). Reports estimate all from those, and say
    /// how far off they may be.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    sample: Option<u64>,
    /// Adapt how many allocations are recorded, so that recording them takes this much of the program's time
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    budget: Option<f64>,
    /// What the choice of allocations is drawn from [default: the time]
    #[arg(long, value_name = "SEED", hide = true)]
    sample_seed: Option<u64>,
    /// When the program ends, look through its memory for blocks that nothing leads to any more: see `grapnel leaks`
    ///
    /// Its end waits until that is done. A program that a signal kills, or that ends without libc, is not looked through.
    #[arg(long, conflicts_with_all = ["off", "sample", "budget"])]
    leaks: bool,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Walk each stack a second time without shortcuts, and count differences (slow; for tests)
    #[arg(long, hide = true)]
    check_stacks: bool,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    push: PushArgs,
    #[command(flatten)]
    snapshots: SnapshotOptions,
    /// The program to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Where the hooks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Via {
    /// In the functions' code
    Inline,
    /// In global offset tables
    Got,
}

/// Where `--budget` begins when `--sample` does not say: a few hundred records for each gigabyte.
const FIRST_SAMPLE: u64 = 512 << 10;

fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if percent > 0.0 && percent <= 100.0 { Ok(percent) } else { Err("not above 0 and up to 100".into()) }
}

impl RunArgs {
    fn sampling(&self) -> Option<shared::Sampling> {
        if self.sample.is_none() && self.budget.is_none() {
            return None;
        }
        let time = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Some(shared::Sampling {
            bytes: self.sample.unwrap_or(FIRST_SAMPLE),
            seed: self.sample_seed.unwrap_or_else(|| time().as_nanos() as u64),
            budget_millionths: self.budget.map_or(0, |percent| ((percent * 1e4) as u64).max(1)),
        })
    }
}

/// Why PROGRAM was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("--via got: the end of a program is seen by a change in code only; record without --leaks")]
    LeaksViaGot,
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Push(#[from] PushError),
    #[error("{path}: the trace can't be written: {error}; choose another place with -o")]
    Output { path: String, error: io::Error },
    #[error("{what}: {error}")]
    System { what: &'static str, error: io::Error },
    #[error("{path}: can't be executed: {error}")]
    Exec { path: String, error: io::Error },
}

impl RunError {
    /// The exit status that a shell's user expects.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Program(error) => error.exit_code(),
            Self::Exec { error, .. } if error.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            _ => OWN_FAILURE,
        }
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |error| RunError::System { what, error }
}

/// Runs PROGRAM to its end and returns its exit status. If a signal ended it, this process ends by the same.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, RunError> {
    let timers = Timers::take();
    if args.leaks && args.via == Via::Got {
        return Err(RunError::LeaksViaGot);
    }
    let inherited = spawn::inherited_descriptors();
    let name = args.command.first().cloned().unwrap_or_default();
    let program = Program::find(&name)?;
    let listening = args.serve.listen()?;
    let pushing = args.push.prepare(&name)?;
    let limits = Limits::raise();
    let agent = agent_file::empty().map_err(system(NO_AGENT))?;
    std::fs::metadata(&agent.path).map_err(system("the program can't reach the agent; is /proc mounted?"))?;
    let mut flags = 0;
    for (set, flag) in [
        (!args.no_follow, session_flags::FOLLOW),
        (args.drop, session_flags::DROP),
        (args.check_stacks, session_flags::CHECK_STACKS),
        (args.off, session_flags::OFF),
        (args.leaks, session_flags::LEAKS),
        (args.via == Via::Got, session_flags::GOT),
    ] {
        flags |= if set { flag } else { 0 };
    }
    let session = Session::new(&agent.path, flags, args.max_frames, args.sampling())
        .map_err(explain)
        .map_err(system("the memory shared with the program can't be made"))?;
    let mask = signals::block_forwarded();
    if args.wait {
        wait::adopt_orphans();
    }
    let as_it_was = AsItWas { mask: &mask, limits: &limits, timers: &timers };
    let child = spawn::fork(&program, &args.command, &agent.path, session.path(), &as_it_was, inherited)
        .map_err(system("the program can't be started"))?;
    let pid = child.pid;
    let path = args
        .output
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("{}.{pid}.grapnel", spawn::short_name(&name))));
    let existed = path.symlink_metadata().is_ok();
    let opened = trace_file::open(&path);
    // Two recordings into one file would spoil it.
    let opened = opened.and_then(|output| match output.try_lock() {
        Err(std::fs::TryLockError::WouldBlock) => Err(io::Error::other("another recording goes there")),
        _ => Ok(output),
    });
    let output = match opened {
        Ok(output) => output,
        Err(error) => {
            child.give_up();
            return Err(RunError::Output { path: path.display().to_string(), error });
        }
    };
    let (dumps, writing) = Dumps::start(args.quiet);
    let orders = Orders { dumps: Some(dumps.clone()), ..Orders::default() };
    orders.desk.open();
    args.snapshots.start(&orders.desk, &dumps, pid as u32);
    let progress = Progress::default();
    let mut pushed = None;
    let serve = || {
        // Who can't be asked records all the same.
        let server = Server::start(&orders.desk)
            .map_err(|error| say(&format!("note: no control of this recording: {error}")));
        if let Some(listening) = listening {
            say(&format!("serving at http://{}/", listening.address()));
            listening.start(&orders.desk);
        }
        pushed = pushing.map(|ready| ready.start(&orders.desk));
        server
    };
    let parts = Parts { session: &session, agent: agent.file, child, output, path: &path, is_new: !existed };
    let (server, recorded) = record(args, parts, &orders, &progress, serve);
    drop(server);
    orders.desk.close();
    writing.finish();
    let (status, outcome) = recorded?;
    let exit = process::exit_of(status);
    summary::print(args.quiet, &path, &name, pid as u32, End::Exit(exit), &outcome);
    if let Some(pushing) = pushed {
        pushing.finish(args.quiet, &path, signals::stop_was_asked_for);
    }
    match exit {
        Exit::Code(code) => Ok(ExitCode::from(code as u8)),
        Exit::Signal(signal) => signals::die_by(signal),
    }
}

/// What a recording needs: what is shared, the file that the agent is to come into, who becomes PROGRAM, and the trace.
struct Parts<'a> {
    session: &'a Session,
    agent: File,
    child: Waiting,
    output: File,
    path: &'a Path,
    /// Whether the trace wasn't there before.
    is_new: bool,
}

/// Drains while PROGRAM runs; returns its status and what was recorded, and what `meanwhile` returns: that is done while the
/// agent is put into memory, for which PROGRAM waits.
fn record<T>(
    args: &RunArgs,
    Parts { session, agent, child, output, path, is_new }: Parts<'_>,
    orders: &Orders,
    progress: &Progress,
    meanwhile: impl FnOnce() -> T,
) -> (Option<T>, Result<(i32, Outcome), RunError>) {
    let pid = child.pid;
    let program = args.command.first().cloned().unwrap_or_default().to_string_lossy().into_owned();
    let (mut done, mut ran) = (None, false);
    let recorded = std::thread::scope(|scope| {
        let (ready_send, ready) = mpsc::channel();
        let (unloaded_send, unloaded) = mpsc::channel();
        let agent = Arc::new(agent);
        let to_fill = Arc::clone(&agent);
        let leaks = args.leaks.then(|| args.policy.wanted());
        let totals = !args.quiet || args.serve.is_wanted() || args.snapshots.need_totals();
        let id = ProcessId::ours(pid as u32);
        let drain = Drain::new(session, progress, orders, id, output, path.to_owned(), totals);
        let drain = drain.telling(unloaded_send);
        let drain = std::thread::Builder::new().name("drain".into()).spawn_scoped(scope, move || {
            let filled = agent_file::fill(&to_fill).map_err(explain).map_err(system(NO_AGENT));
            drop(to_fill);
            let owned = || session.own().map_err(system("the drain can't be started"));
            let _ = ready_send.send(filled.and_then(|()| owned()));
            drain.run(leaks)
        });
        let drain = match drain {
            Ok(drain) => drain,
            Err(error) => {
                child.give_up();
                return Err(system("a thread for the drain can't be started")(error));
            }
        };
        // The drain's end is waited for, whatever happens here.
        let over = scopeguard::guard((), |()| {
            orders.over.store(true, Ordering::Release);
            session.header().wake.fetch_add(1, Ordering::AcqRel);
            shared::futex_wake(&session.header().wake);
        });
        done = Some(meanwhile());
        let ended = |exit, cpu_ns| {
            if let Ok(mut program_exit) = orders.program_exit.lock() {
                *program_exit = Some((exit, cpu_ns));
            }
        };
        let early = |_| Err(system("the drain can't be started")(io::Error::other("it did not start")));
        let started = match ready.recv().unwrap_or_else(early) {
            Ok(()) => child.go().map_err(|error| RunError::Exec { path: program, error }),
            Err(error) => {
                child.give_up();
                Err(error)
            }
        };
        started?;
        ran = true;
        // Not of the scope: it ends with the process, wherever it waits.
        let builder = || std::thread::Builder::new();
        let on = args.snapshots.signal(&orders.desk, orders.dumps.as_ref());
        let _ = builder().spawn(move || signals::forward_signals(pid, on));
        let show = || progress::show(progress, orders);
        let shown = (!args.quiet).then(|| builder().spawn_scoped(scope, show)).and_then(Result::ok);
        let (status, cpu_ns) = wait::reap(pid);
        signals::program_is_over();
        ended(process::exit_of(status), cpu_ns);
        if args.wait {
            wait::reap_all();
        }
        drop(over);
        if let Some(shown) = shown {
            shown.thread().unpark();
        }
        // To give its memory back takes a while, in which the drain writes what is left.
        match unloaded.recv() {
            Ok(()) => drop(agent),
            // An exec is under way, as far as is known. It goes when this process does.
            Err(_) => std::mem::forget(agent),
        }
        let fault = |_| system("the drain ended early")(io::Error::other("a fault in grapnel itself"));
        let outcome = drain.join().map_err(fault)?;
        Ok((status, outcome))
    });
    if !ran && is_new {
        // It was made for a program that never ran.
        let _ = std::fs::remove_file(path);
    }
    (done, recorded)
}
