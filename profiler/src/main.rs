//! The command `grapnel`.

#![cfg_attr(
    not(target_pointer_width = "64"),
    expect(dead_code, unused_imports, reason = "what only attaching uses, which isn't there")
)]

mod agent_path;
#[cfg(target_pointer_width = "64")]
mod attach;
#[cfg(not(target_pointer_width = "64"))]
#[path = "no_attach.rs"]
mod attach;
mod check;
mod cli;
mod control;
mod diff;
mod export;
mod http;
mod import;
mod leaks;
mod look;
mod moment;
mod native;
mod opened;
mod places;
mod priority;
mod push;
mod query;
mod reading;
mod relocate;
mod report;
mod run;
mod secret;
mod serve;
mod sizes;
mod suppressed;
mod symbolize;
mod symbols;
mod top;
mod view;
mod watcher;
mod whole_file;

use cli::{Cli, Command};
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

fn fail(error: impl Display, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "grapnel: {error}");
    ExitCode::from(code)
}

/// The command line. Parsing takes more stack than `ulimit -s 64` leaves, which programs run under: there it has one of its own.
fn parsed() -> Cli {
    const STACK: usize = 1 << 20;
    if run::limits::stack_limit() > STACK as libc::rlim_t {
        return Cli::of_process();
    }
    match std::thread::Builder::new().stack_size(STACK).spawn(Cli::of_process) {
        Ok(parsing) => parsing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        // Not even room for that.
        Err(_) => Cli::of_process(),
    }
}

fn main() -> ExitCode {
    // Whatever goes wrong inside, a user is not shown a backtrace but told what to do.
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!(" ({}:{})", at.file(), at.line())).unwrap_or_default();
        let _ = writeln!(
            std::io::stderr(),
            "grapnel: a fault in grapnel itself{place}; what was recorded until now is in the trace. Please report it"
        );
    }));
    match parsed().command {
        Command::Run(args) => run::run(&args).unwrap_or_else(|error| fail(&error, error.exit_code())),
        Command::Attach(args) => attach::run(&args).unwrap_or_else(|error| fail(&error, error.exit_code())),
        Command::Detach(args) => {
            attach::detach(&args).unwrap_or_else(|error| fail(&error, error.exit_code()))
        }
        Command::Report(args) => report::run(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Top(args) => top::run(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::View(args) => view::run(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Export(args) => export::run(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Symbolize(args) => symbolize::run(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Import(args) => import::run(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Leaks(args) => leaks::run(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Query(args) => query::run(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Diff(args) => diff::run(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Check(args) => check::run(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::List(args) => control::list(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Snapshot(args) => control::snapshot(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Pause(args) => control::pause(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Resume(args) => control::resume(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Mark(args) => control::mark(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Status(args) => control::status(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::Relocate(args) => relocate::run(&args).unwrap_or_else(|error| fail(error, 1)),
        Command::AgentPath => agent_path::run().unwrap_or_else(|error| fail(error, 1)),
        Command::Header { which } => cli::header(which),
        Command::Completions { shell } => cli::completions(shell),
        Command::Man { directory } => {
            cli::man_pages(&directory).map_or_else(|error| fail(error, 1), |()| ExitCode::SUCCESS)
        }
    }
}
