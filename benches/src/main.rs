//! `cargo run --release -p grapnel-benches -- run`: grapnel and heaptrack on the same work.

use clap::{Parser, Subcommand};
use grapnel_benches::measure::{self, Failed, TOOLS};
use grapnel_benches::{machine, table, workloads};
use std::path::{Path, PathBuf};

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
        /// How many times each.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Only the workloads whose name contains this.
        #[arg(long)]
        only: Option<String>,
        /// Where the table goes; benches/results/heaptrack-<date>.md if not given.
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Says what the workloads are.
    List,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let all = workloads::all(dir.path())?;
    match Arguments::parse().command {
        Command::List => {
            for workload in all {
                println!("{:14} {}", workload.name, workload.what);
            }
        }
        Command::Run { rounds, only, output } => {
            let chosen: Vec<_> = all
                .into_iter()
                .filter(|one| only.as_ref().is_none_or(|name| one.name.contains(name)))
                .collect();
            let page = run(&chosen, rounds)?;
            let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
            let output = output.unwrap_or_else(|| results.join(format!("heaptrack-{}.md", machine::date())));
            std::fs::create_dir_all(&results)?;
            std::fs::write(&output, &page)?;
            println!("{page}\nwritten to {}", output.display());
        }
    }
    Ok(())
}

fn run(chosen: &[workloads::Workload], rounds: usize) -> Result<String, Failed> {
    let grapnel = grapnel_tests::programs::grapnel().display().to_string();
    let mut machine = machine::describe(&grapnel);
    machine.push(format!("Load of the last minute before the runs: {}", machine::load()));
    let mut rows = Vec::new();
    for workload in chosen {
        let events = measure::events(workload)?;
        let samples = TOOLS.map(|tool| (tool, Vec::new())).into();
        rows.push(table::Row { name: workload.name, what: workload.what, events, samples });
    }
    for round in 0..rounds {
        for (workload, row) in chosen.iter().zip(&mut rows) {
            for (tool, samples) in &mut row.samples {
                let sample = measure::run_once(workload, *tool)?;
                eprintln!("round {} {} {tool:?} {:.3} s", round + 1, workload.name, sample.wall);
                samples.push(sample);
            }
        }
    }
    Ok(table::page(&machine::date(), &machine, rounds, &rows))
}
