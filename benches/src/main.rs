//! `cargo run --release -p grapnel-benches -- run`: grapnel and heaptrack on the same work. What else there is, `--help` says.

use clap::{Parser, Subcommand};
use grapnel_benches::measure::{self, Failed, Tool};
use grapnel_benches::{
    analyse, emulated,
    hooks::{
        self,
        subject::{self, Engine},
    },
    instructions, machine, relocate, rounds, sampled, table, workloads,
};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Side-by-side runs of grapnel and its peers.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs every workload bare, under heaptrack and under grapnel, and writes a table.
    Run {
        /// For how long each workload is to be run again and again, in seconds.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Only the workloads whose name contains this.
        #[arg(long)]
        only: Option<String>,
        /// Where the table goes; benches/results/heaptrack-<date>.md if not given.
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Measures what `--off` and `--sample 524288` add to programs that take seconds, and writes a table.
    Sample {
        /// How many times each; 12 if not given, and 3 with instructions.
        #[arg(long)]
        rounds: Option<usize>,
        /// Count instructions, in QEMU's user mode (package qemu-user). x86-64.
        #[arg(long)]
        instructions: bool,
        /// Only the workloads whose name contains this.
        #[arg(long)]
        only: Option<String>,
        /// Where the table goes; benches/results/sample-<date>.md if not given, with instructions sample-instructions-<date>.md.
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Measures the relocator's steps, iced-x86 beside them, and `grapnel relocate`, and writes a table.
    Relocate {
        /// How many times each.
        #[arg(long, default_value_t = 11)]
        rounds: usize,
        /// How many requests the command is given for each instruction set.
        #[arg(long, default_value_t = 200_000)]
        lines: usize,
        /// Where the table goes; benches/results/relocate-<date>.md if not given.
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Measures reports, beside heaptrack_interpret and heaptrack_print on recordings of the same workloads, and writes a
    /// table.
    Analyse {
        /// How many times each.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Only the workloads whose name contains this.
        #[arg(long)]
        only: Option<String>,
        /// Also report on recordings of so many events.
        #[arg(long, default_value_t = 100_000_000)]
        large: u64,
        /// Where the table goes; benches/results/analyse-<date>.md if not given.
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Measures calls of hooked functions and how long putting hooks in takes, here and with other engines, and writes a
    /// table. Frida takes part if the Python package `frida` is installed.
    Hooks {
        /// How many times each; many hooks at once a third of that.
        #[arg(long, default_value_t = 21)]
        rounds: usize,
        /// Only this engine; may be given several times.
        #[arg(long, value_name = "ENGINE")]
        only: Vec<Engine>,
        /// Where the table goes; benches/results/hooks-<date>.md if not given.
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// The process whose functions are hooked.
    #[command(hide = true)]
    Hooked {
        /// By what.
        engine: Engine,
    },
    /// Counts by single steps how many instructions `new` and `delete` take, bare and recorded, and says them by mapping. x86-64.
    Instructions {
        /// How many rounds, of 1.3 pairs on average, 20,000 behind the program's start.
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Where to write how often each instruction of the agent ran: lines of its offset in the agent's file and a number.
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Says what the workloads are.
    List,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let all = || workloads::all(dir.path());
    match Arguments::parse().command {
        Command::List => {
            for workload in all()? {
                println!("{:14} {}", workload.name, workload.what);
            }
        }
        Command::Run { seconds, only, output } => {
            let mut chosen = chosen(all()?, only.as_deref());
            chosen.push(workloads::nothing());
            let page = run(&chosen, Duration::from_secs(seconds))?;
            write("heaptrack", output, &page)?;
        }
        Command::Sample { instructions: true, rounds, only, output } => {
            let chosen = chosen(workloads::large(dir.path())?, only.as_deref());
            write("sample-instructions", output, &sample_instructions(&chosen, rounds.unwrap_or(3))?)?;
        }
        Command::Sample { instructions: false, rounds, only, output } => {
            let chosen = chosen(workloads::large(dir.path())?, only.as_deref());
            write("sample", output, &sample(&chosen, rounds.unwrap_or(12))?)?;
        }
        Command::Analyse { rounds, only, large, output } => {
            let page = analyse(&chosen(all()?, only.as_deref()), rounds, large)?;
            write("analyse", output, &page)?;
        }
        Command::Relocate { rounds, lines, output } => {
            write("relocate", output, &relocate(rounds, lines)?)?;
        }
        Command::Hooks { rounds, only, output } => {
            let engines = if only.is_empty() { Engine::ALL.to_vec() } else { only };
            write("hooks", output, &hooks(&engines, rounds)?)?;
        }
        Command::Hooked { engine } => subject::run(engine)?,
        Command::Instructions { rounds, output } => count_instructions(rounds, output.as_deref())?,
    }
    Ok(())
}

fn count_instructions(rounds: u32, output: Option<&Path>) -> Result<(), Box<dyn std::error::Error>> {
    let [bare, recorded] = [false, true].map(|recorded| instructions::count(rounds, recorded));
    let (bare, recorded) = (bare?, recorded?);
    let each = |count: u64| count as f64 / f64::from(rounds);
    let (all_bare, all) = (each(bare.all()), each(recorded.all()));
    let mut said =
        format!("instructions in each of {rounds} rounds: {all_bare:.1} bare, {all:.1} recorded\n");
    for (mapping, &count) in &recorded.by_mapping {
        let before = bare.by_mapping.get(mapping).map_or(0, |&count| count);
        writeln!(said, "{:10.1} {:10.1}  {mapping}", each(before), each(count))?;
    }
    std::io::stdout().write_all(said.as_bytes())?;
    if let Some(path) = output {
        let lines = recorded.agent.iter().map(|(offset, count)| format!("{offset:x} {count}\n"));
        std::fs::write(path, lines.collect::<String>())?;
    }
    Ok(())
}

fn hooks(engines: &[Engine], rounds: usize) -> std::io::Result<String> {
    let mut head = head("The hook engine", &["heaptrack", "grapnel"]);
    head += &format!(
        "{rounds} rounds; in each, every engine's every way ran in turn, each \
        engine in a process of its own with functions of its own. Figures are medians (least-most). Listeners do \
        nothing. Frida's are C functions of a CModule, and its hooks are put in from JavaScript, the only way that its \
        package has. retour is a Rust package, and Dobby the binary that another brings along. A time of a call is the \
        median of 21 passes of 5000 calls. Measured with `cargo run --release -p grapnel-benches -- \
        hooks`.\n"
    );
    hooks::page(engines, rounds, &head)
}

/// How a page begins: what it is of, and the machine, but for commands that have no part in it.
fn head(title: &str, without: &[&str]) -> String {
    // It is built when it is asked for.
    let grapnel =
        if without.contains(&"grapnel") { Path::new("grapnel") } else { grapnel_tests::programs::grapnel() };
    let mut head = format!("# {title}, {}\n\n", machine::date());
    for line in machine::describe(&grapnel.display().to_string()) {
        if !without.iter().any(|name| line.starts_with(name)) {
            head += &format!("- {line}\n");
        }
    }
    head + &format!("- Load of the last minute before the runs: {}\n\n", machine::load())
}

/// Those whose name contains a text.
fn chosen(all: Vec<workloads::Workload>, only: Option<&str>) -> Vec<workloads::Workload> {
    all.into_iter().filter(|one| only.is_none_or(|name| one.name.contains(name))).collect()
}

fn sample(chosen: &[workloads::Workload], rounds: usize) -> Result<String, Failed> {
    let mut head = head("Only some allocations recorded", &["heaptrack"]);
    head += &format!(
        "{rounds} rounds; in each, every program ran under `grapnel run -q \
        --off` and under `grapnel run -q --sample 524288`, bare before or after each of them in turn. Times are those of \
        the whole command, its start and its end included; of bare runs the least and the median. Multiples of them are \
        the least run as one of the least bare run beside such runs, and the median of the quotients of each run and the \
        bare one beside it, with what the middle half of these lies between. sqlite3, python3 and xmllint have {} times \
        the input that they have beside heaptrack. Measured with `cargo run --release -p grapnel-benches -- sample --rounds {rounds}`.\n",
        workloads::LARGE,
    );
    let pairs = rounds::of(chosen, &sampled::TOOLS, rounds)?;
    let measured = chosen.iter().zip(&pairs).map(|(workload, pairs)| (workload.name, &pairs[..]));
    Ok(head + &sampled::tables(measured))
}

fn sample_instructions(chosen: &[workloads::Workload], rounds: usize) -> Result<String, Failed> {
    let mut head = head("Instructions of only some allocations recorded", &["heaptrack"]);
    head += &format!(
        "What each program runs, its dynamic linker and the agent included, from its first instruction to its last, in QEMU's user mode: \
        {rounds} times bare, as often under `grapnel run -q --off` and under `grapnel run -q --sample 524288`, as multiples of the bare \
        median: the median (least-most). The kernel's instructions are not counted, nor those of `grapnel` outside, which has the other processor. \
        Programs whose tables go by addresses take somewhat more or fewer where these are others: clang++'s own code differs by a \
        thousandth. sqlite3, python3 and xmllint have {} times the input that they have beside heaptrack. Counted with `cargo run \
        --release -p grapnel-benches -- sample --instructions --rounds {rounds}`.\n",
        workloads::LARGE,
    );
    let counted: Result<Vec<_>, _> =
        chosen.iter().map(|workload| Ok((workload.name, emulated::count(workload, rounds)?))).collect();
    Ok(head + &emulated::table(counted?.into_iter()))
}

fn analyse(chosen: &[workloads::Workload], rounds: usize, large: u64) -> Result<String, Failed> {
    let mut head = head("Reports", &[]);
    head += &format!(
        "{rounds} rounds; in each, heaptrack_interpret (fed by zstd) and \
        heaptrack_print ran, and then `grapnel report`, on recordings of the same work. Figures are medians (least-most). \
        Memory is the most that the kernel had in memory for a process; of heaptrack's two, the larger. Measured with \
        `cargo run --release -p grapnel-benches -- analyse`.\n"
    );
    analyse::page(chosen, rounds, large, &head)
}

fn write(subject: &str, output: Option<PathBuf>, page: &str) -> std::io::Result<()> {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let output = output.unwrap_or_else(|| results.join(format!("{subject}-{}.md", machine::date())));
    std::fs::create_dir_all(&results)?;
    std::fs::write(&output, page)?;
    println!("{page}\nwritten to {}", output.display());
    Ok(())
}

fn relocate(rounds: usize, lines: usize) -> std::io::Result<String> {
    let grapnel = grapnel_tests::programs::grapnel();
    let mut head = head("The relocator", &["heaptrack"]);
    head += &format!(
        "{rounds} rounds; in each, every step ran in turn, for every \
        instruction set. Figures are medians (least-most). Windows are the shortest that the near redirect needs (5 \
        bytes on x86_64, 4 elsewhere), at the starts of 200 functions of Debian's libraries \
        (benches/src/inputs/windows.txt); those that are refused are left out, but not in the requests. Near is 1 MiB \
        away; far is 32 TiB away for 64-bit code and 1.5 GiB for 32-bit code. Measured with `cargo run --release -p \
        grapnel-benches -- relocate`.\n"
    );
    relocate::page(grapnel, rounds, lines, &head)
}

fn run(chosen: &[workloads::Workload], each: Duration) -> Result<String, Failed> {
    let grapnel = grapnel_tests::programs::grapnel().display().to_string();
    let mut machine = machine::describe(&grapnel);
    machine.push(format!("Load of the last minute before the runs: {}", machine::load()));
    let mut rows = Vec::new();
    for workload in chosen {
        let peak = |tool| measure::peak(workload, tool).map(|peak| (tool, peak));
        rows.push(table::Row {
            name: workload.name,
            what: workload.what,
            events: measure::events(workload)?,
            slowdown: workload.slowdown,
            live: workload.live,
            aside: workload.aside,
            peaks: [Tool::Bare, Tool::Heaptrack, Tool::Grapnel]
                .map(peak)
                .into_iter()
                .collect::<Result<_, _>>()?,
            pairs: Vec::new(),
        });
    }
    for (row, pairs) in rows.iter_mut().zip(rounds::all(chosen, each)?) {
        row.pairs = pairs;
    }
    Ok(table::page(&machine::date(), &machine, &rows))
}
