//! Which run comes when.
//!
//! A machine that is shared is slower for seconds at a time, and what always comes first or last in a round meets the
//! others' habits always in the same way. So each run of a tool has a bare run of its own beside it, now before and now after
//! it; the tool that comes first changes from round to round; short workloads have many rounds; and all
//! rounds of a workload are spread over the whole time.

use crate::measure::{self, Failed, Sample, Tool};
use crate::workloads::Workload;
use std::time::{Duration, Instant};

/// All tools, in the order of the table.
pub const TOOLS: [Tool; 5] = [Tool::Heaptrack, Tool::Grapnel, Tool::Counting, Tool::Off, Tool::Sampled];

/// So many times all workloads come by.
pub const PASSES: u32 = 3;

/// A run with a tool, and the bare run beside it.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The tool.
    pub tool: Tool,
    /// The run with it.
    pub with: Sample,
    /// The run without.
    pub bare: Sample,
}

/// One run of each tool, in the order of this round.
fn round(
    tools: &[Tool],
    number: usize,
    mut run: impl FnMut(Tool) -> Result<Sample, Failed>,
) -> Result<Vec<Pair>, Failed> {
    let mut order = tools.to_vec();
    order.rotate_left(number % tools.len());
    // With an even number of tools, each would always come at the same side of its bare run.
    let turn = if tools.len().is_multiple_of(2) { number / tools.len() } else { 0 };
    let pair = |(place, tool): (usize, Tool)| {
        let (bare, with) = if (number + place + turn).is_multiple_of(2) {
            let bare = run(Tool::Bare)?;
            (bare, run(tool)?)
        } else {
            let with = run(tool)?;
            (run(Tool::Bare)?, with)
        };
        Ok(Pair { tool, with, bare })
    };
    order.into_iter().enumerate().map(pair).collect()
}

/// Runs every workload for about so long, each in at least as many rounds as there are [`PASSES`].
///
/// # Errors
/// When one can't be measured.
pub fn all(workloads: &[Workload], each: Duration) -> Result<Vec<Vec<Pair>>, Failed> {
    let mut pairs = vec![Vec::new(); workloads.len()];
    for pass in 1..=PASSES {
        for (workload, pairs) in workloads.iter().zip(&mut pairs) {
            let start = Instant::now();
            loop {
                let number = pairs.len() / TOOLS.len();
                let begun = Instant::now();
                pairs.extend(round(&TOOLS, number, |tool| measure::run_once(workload, tool))?);
                eprintln!("pass {pass} of {PASSES}, {}: round {}", workload.name, number + 1);
                // A round that is begun is ended: the next must have room.
                if start.elapsed() + begun.elapsed() > each / PASSES {
                    break;
                }
            }
        }
    }
    Ok(pairs)
}

/// Runs every workload in so many rounds with these tools; all come by in each.
///
/// # Errors
/// When one can't be measured.
pub fn of(workloads: &[Workload], tools: &[Tool], rounds: usize) -> Result<Vec<Vec<Pair>>, Failed> {
    let mut pairs = vec![Vec::new(); workloads.len()];
    for number in 0..rounds {
        for (workload, pairs) in workloads.iter().zip(&mut pairs) {
            pairs.extend(round(tools, number, |tool| measure::run_once(workload, tool))?);
        }
        eprintln!("round {} of {rounds}", number + 1);
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_is_first_at_times_and_has_its_bare_run_on_either_side() {
        for tools in [&TOOLS[..], &crate::sampled::TOOLS] {
            let (mut firsts, mut before) = (Vec::new(), Vec::new());
            for number in 0..2 * tools.len() {
                let mut seen = Vec::new();
                let pairs = round(tools, number, |tool| {
                    seen.push(tool);
                    Ok(Sample { wall: seen.len() as f64, cpu: 0.0, trace_bytes: 0 })
                });
                let pairs = pairs.expect("nothing fails");
                assert_eq!(seen.len(), 2 * tools.len());
                for pair in pairs {
                    assert_eq!((pair.with.wall - pair.bare.wall).abs(), 1.0);
                    assert_eq!(seen[pair.with.wall as usize - 1], pair.tool);
                    assert_eq!(seen[pair.bare.wall as usize - 1], Tool::Bare);
                    before.push((pair.tool, pair.bare.wall < pair.with.wall));
                }
                firsts.extend(seen.into_iter().find(|tool| *tool != Tool::Bare));
            }
            for &tool in tools {
                assert!(firsts.contains(&tool));
                assert!(before.contains(&(tool, true)) && before.contains(&(tool, false)));
            }
        }
    }
}
