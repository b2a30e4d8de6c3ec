//! The command line: one definition for parsing, help, completions and man pages.

use crate::attach::{AttachArgs, DetachArgs};
use crate::check::CheckArgs;
use crate::control::{ListArgs, MarkArgs, PidArgs, SnapshotArgs, StatusArgs};
use crate::diff::DiffArgs;
use crate::export::ExportArgs;
use crate::import::ImportArgs;
use crate::leaks::LeaksArgs;
use crate::opened::{say, text_of};
use crate::query::QueryArgs;
use crate::relocate::RelocateArgs;
use crate::report::ReportArgs;
use crate::run::RunArgs;
use crate::symbolize::SymbolizeArgs;
use crate::top::TopArgs;
use crate::view::ViewArgs;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  Where does a program's memory go?
      grapnel run -- python3 -c 'print(sum(range(10**6)))'
      grapnel report python3.*.grapnel

  A compiler is several processes; each gets a trace of its own:
      grapnel run -o build.grapnel -- gcc -c x.cc
      grapnel report build.*.cc1plus.grapnel

  Figures for a script:
      grapnel report --format json t.grapnel | jq .totals";

const RUN_EXAMPLES: &str = "Examples:
  grapnel run -- ./server --port 8080
  grapnel run -o t.grapnel -- gcc -c x.cc     # t.grapnel, t.PID.cc1plus.grapnel, t.PID.as.grapnel
  grapnel run -q --no-follow -- make          # only make itself, and nothing said

Exit status:
  PROGRAM's own; if a signal ended it, grapnel ends by the same signal.
  127  PROGRAM isn't there
  126  PROGRAM can't be run under grapnel: not executable, static, 32-bit, set-uid
  125  grapnel itself failed before PROGRAM started";

const ATTACH_EXAMPLES: &str = "Examples:
  grapnel attach 4711                         # until Ctrl-C
  grapnel attach --for 10 -o t.grapnel $(pidof server) && grapnel report t.grapnel

Exit status:
  0    it was recorded, until it was detached from or ended
  125  it could not be attached to, and nothing in it was changed
  1    the agent could not be taken out again";

const TOP_EXAMPLES: &str = "Examples:
  grapnel top 4711                            # which `grapnel list` names
  grapnel top t.grapnel                       # also while it is written
  grapnel top --once --sort live t.grapnel | head

? shows the keys. q ends the view; the recording goes on.

Exit status:
  0  it was ended by q
  1  there is nothing to look at, or the terminal can't be used
  A signal ends it as it ends any program, after the terminal was given back.";

const REPORT_EXAMPLES: &str = "Examples:
  grapnel report python3.4711.grapnel
  grapnel report --html t.html t.grapnel
  grapnel report --top 3 --frames 0 t.grapnel | less
  grapnel report --format json t.grapnel | jq '.sites[0]'";

const EXPORT_EXAMPLES: &str = "Examples:
  grapnel export -o heap.svg t.grapnel
  grapnel export --measure live -o leaks.svg t.grapnel
  grapnel export -o t.pb.gz t.grapnel && go tool pprof -http : t.pb.gz
  grapnel export --format collapsed t.grapnel | sort | uniq -c
  grapnel export -o t.firefox.json.gz t.grapnel   # for profiler.firefox.com
  grapnel export -o t.parquet t.grapnel && duckdb -c \"from 't.parquet' limit 10\"";

const IMPORT_EXAMPLES: &str = "Examples:
  grapnel import -o app.grapnel heaptrack.app.4711.zst
  grapnel import -o app.grapnel heaptrack.app.4711.raw.zst && grapnel report app.grapnel

Exit status:
  0  all was imported
  1  the file is cut or damaged, and what comes before was imported; it is no such
     file, or can't be read or written";

const LEAKS_EXAMPLES: &str = "Examples:
  grapnel run --leaks -o t.grapnel -- ./server && grapnel leaks t.grapnel
  grapnel leaks --reachable --top 3 t.grapnel       # what holds what is left
  grapnel leaks $(pidof server)                     # while it runs and is recorded
  grapnel run --leaks --interior known --tags 0x7 -o t.grapnel -- ./interpreter
  grapnel leaks --format json t.grapnel | jq .totals
  grapnel check --fail-on leaks t.grapnel           # lost blocks, by the exit status

docs/leaks.md tells what is looked through, and what can't be seen.";

const QUERY_EXAMPLES: &str = "Examples:
  grapnel query --by size t.grapnel
  grapnel query --by time t.grapnel
  grapnel query --by function --keep ^Parser:: --min-size 4K t.grapnel
  grapnel query --from 2s --to 3s --by function --sort grown t.grapnel
  grapnel query --group json=libjson --group ours=^app:: t.grapnel

A PATTERN is looked for anywhere in a name, unless it begins with ^ or ends with $;
* stands for any characters. docs/query.md tells what the columns mean.";

const DIFF_EXAMPLES: &str = "Examples:
  grapnel diff old.grapnel new.grapnel
  grapnel diff --measure live --normalize time monday.grapnel friday.grapnel
  grapnel diff --format json old.grapnel new.grapnel | jq '.sites[0]'";

const CHECK_EXAMPLES: &str = "Examples:
  grapnel run -q -o t.grapnel -- ./tests && grapnel check --fail-on leaks t.grapnel
  grapnel check --max-peak 100M --max-allocations-at parse=2000 t.grapnel
  grapnel check --fail-on leaks --suppressions known.txt --sarif leaks.sarif t.grapnel

A leak is here a block that the program had lost when it ended, if it was recorded
with --leaks; else one that was live then, reachable or not.

Exit status:
  0   every condition is met
  8   --fail-on leaks is not
  16  --max-peak is not
  32  --max-allocations-at is not; of several, these numbers add up
  1   nothing was judged: the trace can't be read, stops early, has lost events
      or is a sample; a file can't be read or written
  2   the options are wrong";

const SYMBOLIZE_EXAMPLES: &str = "Examples:
  grapnel symbolize -o named.grapnel t.grapnel      # then report named.grapnel anywhere
  grapnel symbolize --sysroot /mnt/device -o t.grapnel t.grapnel
  grapnel symbolize --debuginfod -o t.grapnel t.grapnel";

const RELOCATE_EXAMPLES: &str = "Examples:
  grapnel relocate --explain --isa x86_64 --from 0x401000 --to 0x7f00000000 \\
      488b0500100000 c3
  grapnel relocate < requests.jsonl > answers.jsonl

A request is an object on one line, and so is its answer:
  {\"isa\":\"x86_64\",\"from\":\"0x401000\",\"to\":\"0x500000\",
   \"bytes\":\"554889e553c3\",\"min_len\":5}
  {\"ok\":true,\"consumed\":5,\"bytes\":\"554889e553e9fb0ff0ff\",\"map\":[[0,0],
   [1,1],[4,4],[5,5]],\"clobbers\":[],\"resumes\":true,\"landing_pads\":[]}
It may have extent, padding, entry and shadow_stack too, like the options.
docs/relocate.md tells of every field, and of every kind of refusal.

Exit status:
  0  every line was a request; refusals are answers
  1  a line was no request, which was its answer; reading or writing failed
  2  the options are wrong";

const HEADER_EXAMPLES: &str = "Examples:
  grapnel header > grapnel_heap.h
  cc -c pool.c && grapnel run -- ./program    # which includes it
  grapnel header malloc-debug > grapnel_malloc_debug.h";

const AGENT_PATH_EXAMPLES: &str = "Examples:
  LIBC_DEBUG_MALLOC_OPTIONS='backtrace guard' \\
      LD_PRELOAD=$(grapnel agent-path) ./program

docs/malloc-debug.md tells of all options.";

/// A heap profiler for Linux: where a program's memory went
#[derive(Debug, Parser)]
#[command(name = "grapnel", version, propagate_version = true, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The command line. `run` is tried alone first: what it starts waits for this, and to describe all the other commands
    /// takes longer than all that `run` does besides. Whatever isn't plainly one is for the whole description, which then
    /// also has the words for help and errors.
    pub(crate) fn of_process() -> Self {
        let words = || std::env::args_os().skip(1);
        let is_run = words().next().is_some_and(|first| first == "run");
        let alone = is_run.then(|| RunAlone::try_parse_from(words()));
        match alone {
            Some(Ok(RunAlone { args })) => Self { command: Command::Run(args) },
            _ => Self::parse(),
        }
    }
}

/// [`Command::Run`] and nothing else.
#[derive(Debug, Parser)]
struct RunAlone {
    #[command(flatten)]
    args: RunArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program and record every allocation it makes
    ///
    /// PROGRAM runs as it would without grapnel: same input, output, exit status and signals. Every call of
    /// malloc, calloc, realloc, free and their kin is recorded with its stack.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Say which programs are being recorded
    List(ListArgs),
    /// Say how the recording of a process stands
    Status(StatusArgs),
    /// Write the trace of a process that is being recorded as it is now
    ///
    /// All that happened up to this moment is in it. The recording goes on.
    Snapshot(SnapshotArgs),
    /// Leave out what a process allocates, until `grapnel resume`
    ///
    /// Its threads notice within some hundred events each. Frees are recorded all the time, so that blocks which were
    /// recorded before are followed to their end; a block that is reallocated leaves the record.
    Pause(PidArgs),
    /// Record again what a process allocates
    Resume(PidArgs),
    /// Give this moment of a recording a name, by which reports and `grapnel query --from mark:NAME` know it
    Mark(MarkArgs),
    /// Record a process that runs already, and leave it as it was afterwards
    ///
    /// The process is stopped for some milliseconds when the recording begins and when it ends, and goes on as before. No
    /// debugger is needed.
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(AttachArgs),
    /// End what `grapnel attach` does in a process, or did when it was killed
    Detach(DetachArgs),
    /// Show in the terminal what a process holds while it is recorded: live bytes, and which sites grow
    #[command(after_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Say what a trace holds: totals, peak, leaks, and who allocates most
    #[command(after_help = REPORT_EXAMPLES)]
    Report(ReportArgs),
    /// Show what a trace holds in a browser, any range of it in full detail
    ///
    /// Prints an address on this machine and serves a page there until it is interrupted. The page is that of
    /// `grapnel report --html`, and the trace is behind it.
    View(ViewArgs),
    /// Write what a trace holds as a file that other tools open: flame graphs, pprof, speedscope, tables
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Write a trace that carries the names of its functions, for machines that haven't the program's files
    #[command(after_help = SYMBOLIZE_EXAMPLES)]
    Symbolize(SymbolizeArgs),
    /// Make a trace of another profiler's file: heaptrack's
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Say which blocks a program has lost, now or at its end, and what holds the others
    ///
    /// Of a process that is recorded, which stands still while its memory is copied, or of a trace in which leaks were looked
    /// for. Directly lost is what nothing leads to, indirectly what only lost blocks lead to.
    #[command(after_help = LEAKS_EXAMPLES)]
    Leaks(LeaksArgs),
    /// Ask for figures by function, module, thread, size, lifetime or time, with filters
    #[command(after_help = QUERY_EXAMPLES)]
    Query(QueryArgs),
    /// Compare two traces: which sites came, grew, shrank and went
    ///
    /// A site is here a stack of functions by their names, so that it is the same in another build.
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Say whether a trace meets conditions, by the exit status
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Move code to another address so that it does there what it did at its own
    ///
    /// Reads requests from standard input, a JSON object on a line each, and answers each with a line, in order:
    /// the code for the other address, or why there can be none. With HEX, answers that one request.
    #[command(after_help = RELOCATE_EXAMPLES)]
    Relocate(RelocateArgs),
    /// Print the path of the library that does what Android's malloc_debug does, and write it there if it isn't
    ///
    /// It is for programs that preload it without grapnel, with LIBC_DEBUG_MALLOC_OPTIONS set. The file stays, below
    /// $XDG_CACHE_HOME/grapnel or ~/.cache/grapnel.
    #[command(after_help = AGENT_PATH_EXAMPLES)]
    AgentPath,
    /// Write a C header to standard output, by default that with which a program reports what its own pools allocate
    ///
    /// A program or library includes it and has nothing to link with. Each pool then has figures and sites of its own.
    #[command(after_help = HEADER_EXAMPLES)]
    Header {
        /// Which header
        #[arg(value_enum, default_value_t = Which::Heap)]
        which: Which,
    },
    /// Write a shell's completion script to standard output
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the man pages into a directory
    Man {
        /// Where to
        directory: PathBuf,
    },
}

/// The headers that there are.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Which {
    /// For pools of the program's own
    Heap,
    /// Android's functions that tell of live blocks
    MallocDebug,
}

/// Writes a header.
pub(crate) fn header(which: Which) -> ExitCode {
    let text: &[u8] = match which {
        Which::Heap => include_bytes!("../header/grapnel_heap.h"),
        Which::MallocDebug => include_bytes!("../header/grapnel_malloc_debug.h"),
    };
    print(text)
}

/// Writes all of a text to standard output.
pub(crate) fn print(text: &[u8]) -> ExitCode {
    let mut out = io::stdout();
    match out.write_all(text).and_then(|()| out.flush()) {
        // A reader that closes early (`| head`) wanted no more.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(&format!("standard output: {error}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Writes the completions of `shell`.
pub(crate) fn completions(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "grapnel", &mut script);
    print(&script)
}

/// Writes `grapnel.1` and a page for each subcommand.
pub(crate) fn man_pages(directory: &Path) -> io::Result<()> {
    let written =
        std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", text_of(directory))))
}
