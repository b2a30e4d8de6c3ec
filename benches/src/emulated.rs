//! How many instructions a recording adds to whole programs, counted by QEMU's user mode: the same on a busy machine as on an
//! idle one. A clock on the wall doesn't tell a hundredth.
//!
//! Only what the program itself runs is counted, the agent's among it: neither the kernel's nor what `grapnel` runs outside.

use crate::measure::{self, Failed, Tool};
use crate::sampled::TOOLS;
use crate::statistics::{median, spread};
use crate::workloads::{self, Workload};
use grapnel_tests::{programs, run};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

const EMULATOR: &str = "/usr/bin/qemu-x86_64";

/// What `grapnel run` starts, with the agent, the emulator, its plugin and the program's words: the emulator by itself, and the agent
/// in the program, in the session of the `grapnel` above.
const IN_SESSION: &str = r#"
agent=$1 emulator=$2 plugin=$3
shift 3
for descriptor in /proc/$PPID/fd/*; do
    case $(readlink "$descriptor") in
    *grapnel-session*)
        exec "$emulator" -plugin "$plugin" -E "LD_PRELOAD=$agent" -E "GRAPNEL_SESSION=$descriptor" "$@" ;;
    esac
done
echo "grapnel: no session in $PPID" >&2
exit 1"#;

fn failed(what: &str, error: impl std::fmt::Display) -> Failed {
    Failed(format!("{what}: {error}"))
}

/// Instructions of a workload in each round: bare, and by each of [`TOOLS`].
#[derive(Clone, Debug)]
pub struct Counted {
    bare: Vec<u64>,
    with: [Vec<u64>; TOOLS.len()],
}

/// Counts them. What a program does may go by a number that is drawn, or by where its memory lies, so bare runs differ too.
///
/// # Errors
/// When QEMU or the program can't be started, or fails, or the agent has something to say.
pub fn count(workload: &Workload, rounds: usize) -> Result<Counted, Failed> {
    let [off, sampled] = TOOLS;
    let all = |tool| (0..rounds).map(|_| count_with(workload, tool)).collect::<Result<_, _>>();
    Ok(Counted { bare: all(Tool::Bare)?, with: [all(off)?, all(sampled)?] })
}

fn count_with(workload: &Workload, tool: Tool) -> Result<u64, Failed> {
    let dir = run::temporary_dir();
    let count = dir.path().join("count");
    let mut plugin: OsString = programs::library_of(&workloads::source("counter.c")).into();
    plugin.push(",out=");
    plugin.push(&count);
    let before = match tool {
        Tool::Bare => vec![EMULATOR.into(), "-plugin".into(), plugin],
        _ => {
            let mut words = measure::prefix(tool, dir.path());
            let at = words.len() - 1;
            words.insert(at, "--no-follow".into());
            words.extend(["/bin/sh", "-c", IN_SESSION, "sh"].map(OsString::from));
            words.extend([agent()?, EMULATOR.into(), plugin]);
            words
        }
    };
    let what = format!("{tool:?} of {} in QEMU (package qemu-user)", workload.name);
    let mut command = measure::command(workload, &before)?;
    let output = command.stderr(Stdio::piped()).output().map_err(|error| failed(&what, error))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || said.contains("grapnel: ") {
        return Err(failed(&what, format!("{}: {said}", output.status)));
    }
    number_in(&count).ok_or_else(|| Failed(format!("{what} counted nothing")))
}

fn number_in(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn agent() -> Result<OsString, Failed> {
    let output = Command::new(programs::grapnel()).arg("agent-path").output();
    let output = output.map_err(|error| failed("grapnel agent-path", error))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

/// The table: of bare runs their median, and all as multiples of that.
pub fn table<'a>(counted: impl Iterator<Item = (&'a str, Counted)>) -> String {
    let mut out =
        "\n| program | bare, millions | bare | --off | --sample 524288 |\n|---|---|---|---|---|\n".to_owned();
    for (name, Counted { bare, with: [off, sampled] }) in counted {
        let numbers = |counts: &[u64]| counts.iter().map(|&count| count as f64).collect::<Vec<_>>();
        let one = median(&numbers(&bare));
        let [bare, off, sampled] = [bare, off, sampled].map(|counts| {
            let multiples: Vec<f64> = numbers(&counts).iter().map(|count| count / one).collect();
            spread(&multiples, 4)
        });
        let _ = writeln!(out, "| {name} | {:.0} | {bare} | {off} | {sampled} |", one / 1e6);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_multiples_of_the_bare_median() {
        let bare = vec![2_000_000, 1_990_000, 2_030_000];
        let with = [vec![2_001_000; 3], vec![2_030_000, 2_010_000, 2_012_000]];
        let page = table([("x", Counted { bare, with })].into_iter());
        let line = "| x | 2 | 1.0000 (0.9950-1.0150) | 1.0005 (1.0005-1.0005) | 1.0060 (1.0050-1.0150) |\n";
        assert!(page.ends_with(line), "{page}");
    }
}
