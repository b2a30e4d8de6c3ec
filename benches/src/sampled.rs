//! What a recording of only some allocations adds to programs that take seconds, their start included.
//!
//! A hundredth is less than two runs in a row differ by, so there are many, and of each pair of a run and the bare one beside
//! it the quotient is taken.

use crate::measure::{Sample, Tool};
use crate::rounds::Pair;
use crate::statistics::{least, median, quantile};

/// What is compared with bare runs.
pub const TOOLS: [Tool; 2] = [Tool::Off, Tool::Sampled];

/// The tables of what was measured: of each workload its name and its runs, in the order of the rounds.
pub fn tables<'a>(measured: impl Iterator<Item = (&'a str, &'a [Pair])> + Clone) -> String {
    let mut out = String::new();
    for (title, figure) in [
        ("Wall time", (|run| run.wall) as fn(&Sample) -> f64),
        ("Processor time of all processes", |run| run.cpu),
    ] {
        out +=
            &format!("\n## {title}\n\n| program | bare, s | --off | --sample 524288 |\n|---|---|---|---|\n");
        for (name, pairs) in measured.clone() {
            let bare: Vec<f64> = pairs.iter().map(|pair| figure(&pair.bare)).collect();
            let [off, sampled] = TOOLS.map(|tool| multiple(pairs, tool, figure));
            out += &format!("| {name} | {:.2}, {:.2} | {off} | {sampled} |\n", least(&bare), median(&bare),);
        }
    }
    out
}

/// The least as a multiple of the least beside it, and of the quotients the median and what the middle half lies between.
fn multiple(pairs: &[Pair], tool: Tool, figure: fn(&Sample) -> f64) -> String {
    let pairs: Vec<&Pair> = pairs.iter().filter(|pair| pair.tool == tool).collect();
    let of = |run: fn(&Pair) -> &Sample| -> Vec<f64> { pairs.iter().map(|pair| figure(run(pair))).collect() };
    let (with, bare) = (of(|pair| &pair.with), of(|pair| &pair.bare));
    let quotients: Vec<f64> = with.iter().zip(&bare).map(|(with, bare)| with / bare).collect();
    format!(
        "{:.3}, {:.3} ({:.3}-{:.3})",
        least(&with) / least(&bare),
        median(&quotients),
        quantile(&quotients, 0.25),
        quantile(&quotients, 0.75),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_of_runs_beside_each_other() {
        let sample = |wall| Sample { wall, cpu: 2.0 * wall, trace_bytes: 1 };
        let pair = |tool, with, bare| Pair { tool, with: sample(with), bare: sample(bare) };
        let pairs = [
            pair(Tool::Off, 3.0, 3.0),
            pair(Tool::Sampled, 2.2, 2.0),
            pair(Tool::Sampled, 4.0, 4.0),
            pair(Tool::Sampled, 1.2, 1.0),
        ];
        let page = tables([("x", &pairs[..])].into_iter());
        let line = "| x | 1.00, 2.50 | 1.000, 1.000 (1.000-1.000) | 1.200, 1.100 (1.050-1.150) |";
        assert!(page.contains(line), "{page}");
        assert!(page.contains("| x | 2.00, 5.00 |"), "{page}");
    }
}
