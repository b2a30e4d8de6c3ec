//! How long a report takes, and how much memory: beside heaptrack_interpret and heaptrack_print on the same work.

use crate::measure::{self, Failed, Sample};
use crate::statistics::spread;
use crate::workloads::{self, Workload};
use grapnel_tests::{programs, run};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian puts what `heaptrack` runs beside a recording.
const INTERPRET: &str = "/usr/lib/heaptrack/libexec/heaptrack_interpret";
const MIB: f64 = (1 << 20) as f64;

/// Recordings of a workload.
struct Recorded {
    dir: tempfile::TempDir,
}

impl Recorded {
    fn new(workload: &Workload, by_heaptrack: bool) -> Result<Self, Failed> {
        let recorded = Self { dir: run::temporary_dir() };
        let ours = ["run", "-q", "--no-follow", "-o"].map(Into::into);
        let ours =
            [&[programs::grapnel().into()], &ours[..], &[recorded.path("t.grapnel").into(), "--".into()]];
        let mut all = vec![ours.concat()];
        if by_heaptrack {
            all.push(vec!["heaptrack".into(), "-r".into(), "-o".into(), recorded.path("t").into()]);
        }
        for before in all {
            measure::timed(measure::command(workload, &before)?)?;
        }
        Ok(recorded)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// As `heaptrack` itself runs it, but for the compression of what comes out.
    fn interpret(&self) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", "zstd -dc \"$1\" | \"$2\" >\"$3\"", "bash"]);
        command.arg(self.path("t.raw.zst")).arg(INTERPRET).arg(self.path("t.txt"));
        command
    }

    fn print(&self) -> Command {
        let mut command = Command::new("heaptrack_print");
        command.arg("-f").arg(self.path("t.txt"));
        command
    }

    fn report(&self) -> Command {
        let mut command = Command::new(programs::grapnel());
        command.arg("report").arg(self.path("t.grapnel"));
        command
    }
}

/// Measures all workloads, and reports on long recordings, and writes the page.
///
/// # Errors
/// When something can't be started or fails.
pub fn page(chosen: &[Workload], rounds: usize, large: u64, head: &str) -> Result<String, Failed> {
    let mut out = head.to_owned();
    let names = "| workload | events | heaptrack, processor s | grapnel, processor s | times as fast | heaptrack, wall s \
        | grapnel, wall s | times as fast | heaptrack, MiB | grapnel, MiB |";
    let _ = writeln!(out, "\n{names}\n|---|---|---|---|---|---|---|---|---|---|");
    let long = if large > 0 { workloads::long(large) } else { Vec::new() };
    // heaptrack's interpreter takes all of a machine's memory for stacks that are deep and varied.
    let (alone, both): (Vec<&Workload>, Vec<&Workload>) = long.iter().partition(|workload| workload.live > 0);
    for workload in chosen.iter().chain(both) {
        let _ = writeln!(out, "{}", beside_heaptrack(workload, rounds)?);
    }
    if !alone.is_empty() {
        let _ = writeln!(out, "\nWhat heaptrack_interpret has no memory for, with `grapnel report` alone:\n");
        let _ =
            writeln!(out, "| recording | events | trace, MiB | processor s | MiB |\n|---|---|---|---|---|");
    }
    for workload in alone {
        let recorded = Recorded::new(workload, false)?;
        let sample = measure::timed(recorded.report())?;
        let memory = measure::most_memory(recorded.report())? as f64 / MIB;
        let bytes = bytes_of(&recorded.path("t.grapnel")) as f64 / MIB;
        let events = measure::events(workload)?;
        let _ =
            writeln!(out, "| {} | {events} | {bytes:.0} | {:.1} | {memory:.0} |", workload.what, sample.cpu);
    }
    Ok(out)
}

/// A row of the table.
fn beside_heaptrack(workload: &Workload, rounds: usize) -> Result<String, Failed> {
    let recorded = Recorded::new(workload, true)?;
    let (mut theirs, mut ours): (Vec<Sample>, Vec<Sample>) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let (interpret, print) = (measure::timed(recorded.interpret())?, measure::timed(recorded.print())?);
        theirs.push(Sample { wall: interpret.wall + print.wall, cpu: interpret.cpu + print.cpu, ..print });
        ours.push(measure::timed(recorded.report())?);
        eprintln!("round {} {}", round + 1, workload.name);
    }
    let mut row = format!("| {} | {} |", workload.name, measure::events(workload)?);
    let figures: [fn(&Sample) -> f64; 2] = [|sample| sample.cpu, |sample| sample.wall];
    for of in figures {
        let column = |samples: &[Sample]| spread(&samples.iter().map(of).collect::<Vec<_>>(), 2);
        let times = theirs.iter().zip(&ours).map(|(theirs, ours)| of(theirs) / of(ours));
        let times = spread(&times.collect::<Vec<_>>(), 1);
        let _ = write!(row, " {} | {} | {times} |", column(&theirs), column(&ours));
    }
    let most = measure::most_memory(recorded.interpret())?.max(measure::most_memory(recorded.print())?);
    let own = measure::most_memory(recorded.report())?;
    let _ = write!(row, " {:.0} | {:.0} |", most as f64 / MIB, own as f64 / MIB);
    Ok(row)
}

fn bytes_of(path: &Path) -> u64 {
    path.metadata().map_or(0, |facts| facts.len())
}
