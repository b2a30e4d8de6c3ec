//! The figures as markdown.

use crate::measure::{Sample, Tool};
use crate::workloads::{EIGHT_THREADS, ONE_THREAD};

/// All runs of one workload.
#[derive(Clone, Debug)]
pub struct Row {
    /// The workload's name.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Events in one run.
    pub events: u64,
    /// See [`crate::workloads::Workload::slowdown`].
    pub slowdown: Option<f64>,
    /// See [`crate::workloads::Workload::live`].
    pub live: u64,
    /// The peak of its memory with each tool, in bytes.
    pub peaks: Vec<(Tool, u64)>,
    /// Samples of each tool, in the order of the rounds.
    pub samples: Vec<(Tool, Vec<Sample>)>,
}

/// The middle of the values; the mean of the two in the middle if their number is even.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// The median, with the least and the most.
pub fn spread(values: &[f64], digits: usize) -> String {
    if values.is_empty() {
        return "-".to_owned();
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{:.digits$} ({least:.digits$}-{most:.digits$})", median(values))
}

impl Row {
    fn of(&self, tool: Tool) -> &[Sample] {
        self.samples.iter().find(|(of, _)| *of == tool).map_or(&[], |(_, samples)| samples)
    }

    /// The quotients of each round: both runs stood near each other in time.
    fn slowdowns(&self, tool: Tool, figure: fn(&Sample) -> f64) -> Vec<f64> {
        self.of(tool)
            .iter()
            .zip(self.of(Tool::Bare))
            .map(|(with, bare)| figure(with) / figure(bare))
            .collect()
    }

    fn added_ns_per_event(&self, tool: Tool, figure: fn(&Sample) -> f64) -> f64 {
        let added =
            self.of(tool).iter().zip(self.of(Tool::Bare)).map(|(with, bare)| figure(with) - figure(bare));
        median(&added.collect::<Vec<_>>()) * 1e9 / self.events as f64
    }

    fn trace_bytes(&self, tool: Tool) -> f64 {
        let bytes: Vec<f64> = self.of(tool).iter().map(|sample| sample.trace_bytes as f64).collect();
        median(&bytes)
    }

    /// What Grapnel adds, as a fraction of what heaptrack adds.
    fn fraction(&self, figure: fn(&Sample) -> f64) -> f64 {
        self.added_ns_per_event(Tool::Grapnel, figure) / self.added_ns_per_event(Tool::Heaptrack, figure)
    }

    fn added_mib(&self, tool: Tool) -> f64 {
        let peak =
            |of| self.peaks.iter().find(|(tool, _)| *tool == of).map_or(f64::NAN, |(_, peak)| *peak as f64);
        (peak(tool) - peak(Tool::Bare)) / f64::from(1 << 20)
    }
}

fn wall(sample: &Sample) -> f64 {
    sample.wall
}

fn cpu(sample: &Sample) -> f64 {
    sample.cpu
}

/// The whole page.
pub fn page(date: &str, machine: &[String], rounds: usize, rows: &[Row]) -> String {
    let mut out = format!("# grapnel and heaptrack side by side, {date}\n\n");
    for line in machine {
        out += &format!("- {line}\n");
    }
    out += &format!(
        "\n{rounds} rounds; in each, every workload ran bare, under `heaptrack -r`, under `grapnel run -q`, and under `grapnel \
         run` without -q, which counts for its summary, with --off, and with --sample 524288, one after the other. Slowdown is the quotient with the bare run of the \
         same round: median (least-most). An event is a successful allocation, reallocation or free, as the counting \
         library of the tests sees it. Wall time is that of the whole command, from its start until the trace is complete. \
         Processor time is that of all its processes. Memory is the peak of the program's own process, what it shares with \
         grapnel included, in a run of its own.\n\n## In short\n\n"
    );
    out += &summary(rows);
    out += "\n## Wall time\n\n| workload | events | bare, s | heaptrack, slowdown | grapnel, slowdown | heaptrack, added ns per event | grapnel, added ns per event | as a fraction | grapnel counting, added ns per event |\n|---|---|---|---|---|---|---|---|---|\n";
    for row in rows {
        let bare: Vec<f64> = row.of(Tool::Bare).iter().map(wall).collect();
        out += &format!(
            "| {} | {} | {:.3} | {} | {} | {:.0} | {:.0} | {:.2} | {:.0} |\n",
            row.name,
            row.events,
            median(&bare),
            spread(&row.slowdowns(Tool::Heaptrack, wall), 2),
            spread(&row.slowdowns(Tool::Grapnel, wall), 2),
            row.added_ns_per_event(Tool::Heaptrack, wall),
            row.added_ns_per_event(Tool::Grapnel, wall),
            row.fraction(wall),
            row.added_ns_per_event(Tool::Counting, wall),
        );
    }
    out += "\n## Processor time, size of the trace, memory\n\n| workload | heaptrack, added ns per event | grapnel, added ns per event | heaptrack, bytes per event | grapnel, bytes per event | heaptrack, added MiB | grapnel, added MiB |\n|---|---|---|---|---|---|---|\n";
    for row in rows {
        out += &format!(
            "| {} | {:.0} | {:.0} | {:.2} | {:.2} | {:.1} | {:.1} |\n",
            row.name,
            row.added_ns_per_event(Tool::Heaptrack, cpu),
            row.added_ns_per_event(Tool::Grapnel, cpu),
            row.trace_bytes(Tool::Heaptrack) / row.events as f64,
            row.trace_bytes(Tool::Grapnel) / row.events as f64,
            row.added_mib(Tool::Heaptrack),
            row.added_mib(Tool::Grapnel),
        );
    }
    out += "\n## Off, and a sample\n\nAs a multiple of the bare run of the same round; starting grapnel and ending the trace are in it, some 10 \
            milliseconds.\n\n| workload | --off | --off, processor time | --sample 524288 | --sample 524288, processor time |\n|---|---|---|---|---|\n";
    for row in rows {
        out += &format!(
            "| {} | {} | {} | {} | {} |\n",
            row.name,
            spread(&row.slowdowns(Tool::Off, wall), 3),
            spread(&row.slowdowns(Tool::Off, cpu), 3),
            spread(&row.slowdowns(Tool::Sampled, wall), 3),
            spread(&row.slowdowns(Tool::Sampled, cpu), 3),
        );
    }
    out += "\n## The workloads\n\n";
    for row in rows {
        out += &format!("- {}: {}\n", row.name, row.what);
    }
    out
}

/// What is asked of grapnel, and what was measured.
fn summary(rows: &[Row]) -> String {
    let fractions: Vec<(f64, &str)> = rows.iter().map(|row| (row.fraction(wall), row.name)).collect();
    let logs = fractions.iter().map(|(fraction, _)| fraction.max(1e-3).ln());
    let mean = (logs.sum::<f64>() / fractions.len() as f64).exp();
    let by_size = |a: &&(f64, &str), b: &&(f64, &str)| a.0.total_cmp(&b.0);
    let named = |found: Option<&(f64, &str)>| {
        found.map_or("-".to_owned(), |(fraction, name)| format!("{fraction:.2} ({name})"))
    };
    let mut out = format!(
        "- Added wall time per event as a fraction of heaptrack's, where a tenth is the goal for the mean: geometric mean \
         {mean:.3} over {} workloads; at most {}, at least {}\n",
        rows.len(),
        named(fractions.iter().max_by(by_size)),
        named(fractions.iter().min_by(by_size)),
    );
    let traces = |tool| rows.iter().map(|row| row.trace_bytes(tool)).sum::<f64>();
    out += &format!(
        "- All traces together, at most 0.5 of heaptrack's asked for: {:.2}\n",
        traces(Tool::Grapnel) / traces(Tool::Heaptrack)
    );
    let real = rows.iter().filter_map(|row| {
        let slowdown = median(&row.slowdowns(Tool::Grapnel, wall));
        row.slowdown.map(|most| format!("{} {slowdown:.2} of {most}", row.name))
    });
    out += &format!("- Slowdown, and what it may be: {}\n", real.collect::<Vec<_>>().join(", "));
    let most = rows.iter().map(|row| {
        let allowed = 24.0 + row.live as f64 * 16.0 / f64::from(1 << 20);
        (row.added_mib(Tool::Grapnel), allowed, row.name)
    });
    if let Some((added, allowed, name)) = most.max_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1))) {
        out += &format!(
            "- Memory added to the program, at most 24 MiB and 16 bytes per live block asked for: {added:.1} of {allowed:.1} \
             MiB ({name})\n"
        );
    }
    let threads = |name| rows.iter().find(|row| row.name == name);
    if let (Some(one), Some(eight)) = (threads(ONE_THREAD), threads(EIGHT_THREADS)) {
        out += &format!(
            "- Added processor time per event with eight threads, as a multiple of that with one: {:.2}; of heaptrack's: {:.2}\n",
            eight.added_ns_per_event(Tool::Grapnel, cpu) / one.added_ns_per_event(Tool::Grapnel, cpu),
            eight.added_ns_per_event(Tool::Heaptrack, cpu) / one.added_ns_per_event(Tool::Heaptrack, cpu),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn quotients_are_of_the_same_round() {
        let sample = |wall: f64, trace_bytes| Sample { wall, cpu: wall, trace_bytes };
        let row = Row {
            name: "x",
            what: "y",
            events: 1_000_000_000,
            slowdown: Some(1.5),
            live: 1 << 20,
            peaks: vec![(Tool::Bare, 1 << 20), (Tool::Heaptrack, 3 << 20), (Tool::Grapnel, 21 << 20)],
            samples: vec![
                (Tool::Bare, vec![sample(1.0, 0), sample(2.0, 0), sample(4.0, 0)]),
                (Tool::Heaptrack, vec![sample(10.0, 1), sample(10.0, 1), sample(10.0, 1)]),
                (Tool::Grapnel, vec![sample(2.0, 3_000_000_000), sample(4.0, 3_000_000_000), sample(8.0, 0)]),
            ],
        };
        let page = page("today", &["a machine".into()], 3, &[row]);
        for line in [
            "| x | 1000000000 | 2.000 | 5.00 (2.50-10.00) | 2.00 (2.00-2.00) | 8 | 2 | 0.25 | NaN |",
            "| x | 8 | 2 | 0.00 | 3.00 | 2.0 | 20.0 |",
            "geometric mean 0.250 over 1 workloads; at most 0.25 (x), at least 0.25 (x)",
            "x 2.00 of 1.5",
            "20.0 of 40.0 MiB (x)",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }
}
