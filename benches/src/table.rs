//! The figures as markdown.

use crate::measure::{Sample, Tool};

/// All runs of one workload.
#[derive(Clone, Debug)]
pub struct Row {
    /// The workload's name.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Events in one run.
    pub events: u64,
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

    fn bytes_per_event(&self, tool: Tool) -> f64 {
        let bytes: Vec<f64> = self.of(tool).iter().map(|sample| sample.trace_bytes as f64).collect();
        median(&bytes) / self.events as f64
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
        "\n{rounds} rounds; in each, every workload ran bare, under `heaptrack -r` and under `grapnel run -q`, one \
         after the other. Slowdown is the quotient with the bare run of the same round: median (least-most). An \
         event is a successful allocation, reallocation or free, as the counting library of the tests sees it. \
         Wall time is that of the whole command, from its start until the trace is complete. Processor time is \
         that of all its processes.\n\n## Wall time\n\n"
    );
    out += "| workload | events | bare, s | heaptrack, slowdown | grapnel, slowdown | heaptrack, added ns per event | grapnel, added ns per event |\n|---|---|---|---|---|---|---|\n";
    for row in rows {
        let bare: Vec<f64> = row.of(Tool::Bare).iter().map(wall).collect();
        out += &format!(
            "| {} | {} | {:.3} | {} | {} | {:.0} | {:.0} |\n",
            row.name,
            row.events,
            median(&bare),
            spread(&row.slowdowns(Tool::Heaptrack, wall), 2),
            spread(&row.slowdowns(Tool::Grapnel, wall), 2),
            row.added_ns_per_event(Tool::Heaptrack, wall),
            row.added_ns_per_event(Tool::Grapnel, wall),
        );
    }
    out += "\n## Processor time, and size of the trace\n\n| workload | heaptrack, added ns per event | grapnel, added ns per event | heaptrack, bytes per event | grapnel, bytes per event |\n|---|---|---|---|---|\n";
    for row in rows {
        out += &format!(
            "| {} | {:.0} | {:.0} | {:.2} | {:.2} |\n",
            row.name,
            row.added_ns_per_event(Tool::Heaptrack, cpu),
            row.added_ns_per_event(Tool::Grapnel, cpu),
            row.bytes_per_event(Tool::Heaptrack),
            row.bytes_per_event(Tool::Grapnel),
        );
    }
    out += "\n## The workloads\n\n";
    for row in rows {
        out += &format!("- {}: {}\n", row.name, row.what);
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
            samples: vec![
                (Tool::Bare, vec![sample(1.0, 0), sample(2.0, 0), sample(4.0, 0)]),
                (Tool::Heaptrack, vec![sample(10.0, 1), sample(10.0, 1), sample(10.0, 1)]),
                (Tool::Grapnel, vec![sample(2.0, 3_000_000_000), sample(4.0, 3_000_000_000), sample(8.0, 0)]),
            ],
        };
        let page = page("today", &["a machine".into()], 3, &[row]);
        assert!(
            page.contains("| x | 1000000000 | 2.000 | 5.00 (2.50-10.00) | 2.00 (2.00-2.00) | 8 | 2 |"),
            "{page}"
        );
        assert!(page.contains("| x | 8 | 2 | 0.00 | 3.00 |"), "{page}");
    }
}
