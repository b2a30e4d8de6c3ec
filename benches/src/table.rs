//! The figures as markdown.

use crate::measure::{Sample, Tool};
use crate::rounds::{PASSES, Pair, TOOLS};
use crate::statistics::{least, low, median};
use crate::workloads::{EIGHT_THREADS, NOTHING, ONE_THREAD};

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
    /// See [`crate::workloads::Workload::aside`].
    pub aside: bool,
    /// The peak of its memory with each tool, in bytes.
    pub peaks: Vec<(Tool, u64)>,
    /// The runs, in the order of the rounds.
    pub pairs: Vec<Pair>,
}

type Figure = fn(&Sample) -> f64;

/// How what a tool adds is taken from runs with it and the bare runs beside them, as many of the one as of the other: more
/// runs have a smaller least.
#[derive(Clone, Copy, Debug)]
enum By {
    /// The least of the ones less the least of the others.
    Least,
    /// The median of each run's difference to the one beside it.
    Median,
}

impl Row {
    fn pairs_of(&self, tool: Tool) -> impl Iterator<Item = &Pair> {
        self.pairs.iter().filter(move |pair| pair.tool == tool)
    }

    fn with(&self, tool: Tool, figure: Figure) -> Vec<f64> {
        self.pairs_of(tool).map(|pair| figure(&pair.with)).collect()
    }

    /// Of the bare runs beside those with a tool.
    fn beside(&self, tool: Tool, figure: Figure) -> Vec<f64> {
        self.pairs_of(tool).map(|pair| figure(&pair.bare)).collect()
    }

    /// Of all bare runs, whichever tool's they stood beside.
    fn bare(&self, figure: Figure) -> Vec<f64> {
        self.pairs.iter().map(|pair| figure(&pair.bare)).collect()
    }

    /// What a figure is larger by with a tool.
    fn added(&self, tool: Tool, figure: Figure, by: By) -> f64 {
        match by {
            By::Least => least(&self.with(tool, figure)) - least(&self.beside(tool, figure)),
            By::Median => {
                let difference = |pair: &Pair| figure(&pair.with) - figure(&pair.bare);
                median(&self.pairs_of(tool).map(difference).collect::<Vec<_>>())
            }
        }
    }

    fn added_ns_per_event(&self, tool: Tool, figure: Figure, by: By) -> f64 {
        self.added(tool, figure, by) * 1e9 / self.events as f64
    }

    /// As a multiple of the bare runs, when `once` is taken off.
    fn multiple(&self, tool: Tool, figure: Figure, by: By, once: f64) -> f64 {
        match by {
            By::Least => (least(&self.with(tool, figure)) - once) / least(&self.beside(tool, figure)),
            By::Median => {
                let quotient = |pair: &Pair| (figure(&pair.with) - once) / figure(&pair.bare);
                median(&self.pairs_of(tool).map(quotient).collect::<Vec<_>>())
            }
        }
    }

    fn trace_bytes(&self, tool: Tool) -> f64 {
        median(&self.with(tool, |sample| sample.trace_bytes as f64))
    }

    /// What Grapnel adds, as a fraction of what heaptrack adds.
    fn fraction(&self, by: By) -> f64 {
        self.added(Tool::Grapnel, wall, by) / self.added(Tool::Heaptrack, wall, by)
    }

    fn added_mib(&self, tool: Tool) -> f64 {
        let peak =
            |of| self.peaks.iter().find(|(tool, _)| *tool == of).map_or(f64::NAN, |(_, peak)| *peak as f64);
        (peak(tool) - peak(Tool::Bare)) / f64::from(1 << 20)
    }
}

/// By both ways.
fn both(figure: impl Fn(By) -> f64, digits: usize) -> String {
    format!("{:.digits$}, {:.digits$}", figure(By::Least), figure(By::Median))
}

fn wall(sample: &Sample) -> f64 {
    sample.wall
}

fn cpu(sample: &Sample) -> f64 {
    sample.cpu
}

/// What is said of how it was measured.
const HOW: &str = "Wall time is that of the whole command, from its start until the trace is complete. \
Processor time is that of all its processes. Memory is the peak of the program's own process, what it shares with grapnel \
included, in a run of its own. An event is a successful allocation, reallocation or free, as the counting library of the tests sees \
it.\n\nOther guests of the machine slow runs down, some by half for seconds, and never speed one up. So two figures stand for \
what a tool adds: the least of its runs less the least of as many bare ones, those beside it; and the median of what each run takes \
more than the bare one beside it. Where they are far apart the machine was not idle enough. Times of runs are the least, the tenth \
percentile and the median of all.";

/// The whole page; `rows` may have that of [`NOTHING`] among them.
pub fn page(date: &str, machine: &[String], all: &[Row]) -> String {
    let (start, rows): (Vec<&Row>, Vec<&Row>) = all.iter().partition(|row| row.name == NOTHING);
    let mut out = format!("# grapnel and heaptrack side by side, {date}\n\n");
    for line in machine {
        out += &format!("- {line}\n");
    }
    out += &format!(
        "\nAll workloads came by {PASSES} times, each for so many rounds as had time, at least one. In a round it ran under \
         `heaptrack -r`, under `grapnel run -q`, under `grapnel run` without -q, which counts for its summary, with \
         `-q --off`, and with `-q --sample 524288`, another one first in each round, and bare before or after each of \
         them in turn. {HOW}\n\n## In short\n\n"
    );
    out += &summary(&rows);
    out += &wall_table(&rows);
    out += &other_table(&rows);
    out += &off_and_sampled(&rows, start.first().copied());
    out += "\n## The workloads\n\n";
    for row in rows {
        out += &format!("- {}: {}\n", row.name, row.what);
    }
    out
}

fn wall_table(rows: &[&Row]) -> String {
    let mut out = "\n## Wall time\n\n| workload | events | rounds | bare, s | heaptrack, s | grapnel, s | heaptrack, slowdown | \
         grapnel, slowdown | heaptrack, added ns per event | grapnel, added ns per event | as a fraction | grapnel \
         counting, added ns per event |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        out += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row.name,
            row.events,
            row.pairs.len() / TOOLS.len(),
            low(&row.bare(wall), 3),
            low(&row.with(Tool::Heaptrack, wall), 3),
            low(&row.with(Tool::Grapnel, wall), 3),
            both(|by| row.multiple(Tool::Heaptrack, wall, by, 0.0), 2),
            both(|by| row.multiple(Tool::Grapnel, wall, by, 0.0), 2),
            both(|by| row.added_ns_per_event(Tool::Heaptrack, wall, by), 0),
            both(|by| row.added_ns_per_event(Tool::Grapnel, wall, by), 0),
            both(|by| row.fraction(by), 2),
            both(|by| row.added_ns_per_event(Tool::Counting, wall, by), 0),
        );
    }
    out
}

fn other_table(rows: &[&Row]) -> String {
    let mut out = "\n## Processor time, size of the trace, memory\n\n| workload | heaptrack, added ns per event | grapnel, added ns per event | heaptrack, bytes per event | grapnel, bytes per event | heaptrack, added MiB | grapnel, added MiB |\n|---|---|---|---|---|---|---|\n".to_owned();
    for row in rows {
        out += &format!(
            "| {} | {} | {} | {:.2} | {:.2} | {:.1} | {:.1} |\n",
            row.name,
            both(|by| row.added_ns_per_event(Tool::Heaptrack, cpu, by), 0),
            both(|by| row.added_ns_per_event(Tool::Grapnel, cpu, by), 0),
            row.trace_bytes(Tool::Heaptrack) / row.events as f64,
            row.trace_bytes(Tool::Grapnel) / row.events as f64,
            row.added_mib(Tool::Heaptrack),
            row.added_mib(Tool::Grapnel),
        );
    }
    out
}

/// `start`: of the program that does nothing, what each tool adds to any program once.
fn off_and_sampled(rows: &[&Row], start: Option<&Row>) -> String {
    let once = |tool, figure, by| start.map_or(0.0, |row| row.added(tool, figure, by));
    let once_ms = |tool| both(|by| once(tool, wall, by) * 1e3, 1);
    let mut out = "\n## Off, and a sample\n\n".to_owned();
    if start.is_some() {
        out += &format!(
            "To a program that does nothing at all are added, in ms: {} by heaptrack, {} by grapnel, {} by grapnel \
             with --off, {} with --sample 524288. That is left out of these multiples of the bare runs.\n\n",
            once_ms(Tool::Heaptrack),
            once_ms(Tool::Grapnel),
            once_ms(Tool::Off),
            once_ms(Tool::Sampled),
        );
    }
    out += "| workload | --off | --off, processor time | --sample 524288 | --sample 524288, processor time | --sample \
            524288, added ns per event |\n|---|---|---|---|---|---|\n";
    for row in rows {
        let multiple = |tool, figure| both(|by| row.multiple(tool, figure, by, once(tool, figure, by)), 3);
        let sampled = |by| {
            let added = row.added(Tool::Sampled, wall, by) - once(Tool::Sampled, wall, by);
            added * 1e9 / row.events as f64
        };
        out += &format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            row.name,
            multiple(Tool::Off, wall),
            multiple(Tool::Off, cpu),
            multiple(Tool::Sampled, wall),
            multiple(Tool::Sampled, cpu),
            both(sampled, 1),
        );
    }
    out
}

fn geometric_mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    (values.map(|value| value.max(1e-3).ln()).sum::<f64>() / count).exp()
}

/// What is asked of grapnel, and what was measured.
fn summary(all: &[&Row]) -> String {
    let rows: Vec<&Row> = all.iter().copied().filter(|row| !row.aside).collect();
    if rows.is_empty() {
        return "Nothing is asked of these.\n".to_owned();
    }
    let fractions =
        |by| -> Vec<(f64, &str)> { rows.iter().map(|row| (row.fraction(by), row.name)).collect() };
    let said = |by| {
        let all = fractions(by);
        let by_size = |a: &&(f64, &str), b: &&(f64, &str)| a.0.total_cmp(&b.0);
        let named = |found: Option<&(f64, &str)>| {
            found.map_or("-".to_owned(), |(fraction, name)| format!("{fraction:.2} ({name})"))
        };
        format!(
            "geometric mean {:.3}, at most {}, at least {}",
            geometric_mean(all.iter().map(|(fraction, _)| *fraction)),
            named(all.iter().max_by(by_size)),
            named(all.iter().min_by(by_size)),
        )
    };
    let mut out = format!(
        "- Added wall time per event as a fraction of heaptrack's, where a tenth is the goal for the mean, at most a sixth asked \
         for, and of each of the {} workloads a quarter: by the least of the runs {}; by the median of the differences {}\n",
        rows.len(),
        said(By::Least),
        said(By::Median),
    );
    let traces = |tool| rows.iter().map(|row| row.trace_bytes(tool)).sum::<f64>();
    out += &format!(
        "- All traces together, at most 0.5 of heaptrack's asked for: {:.2}\n",
        traces(Tool::Grapnel) / traces(Tool::Heaptrack)
    );
    let real = rows.iter().filter_map(|row| {
        let slowdown = both(|by| row.multiple(Tool::Grapnel, wall, by, 0.0), 2);
        row.slowdown.map(|most| format!("{} {slowdown} of {most}", row.name))
    });
    out += &format!("- Slowdown, and what it may be: {}\n", real.collect::<Vec<_>>().join("; "));
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
            "- Added processor time per event with eight threads, as a multiple of that with one: {}; of heaptrack's: {}\n",
            both(
                |by| eight.added_ns_per_event(Tool::Grapnel, cpu, by)
                    / one.added_ns_per_event(Tool::Grapnel, cpu, by),
                2
            ),
            both(
                |by| eight.added_ns_per_event(Tool::Heaptrack, cpu, by)
                    / one.added_ns_per_event(Tool::Heaptrack, cpu, by),
                2
            ),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(wall: f64, trace_bytes: u64) -> Sample {
        Sample { wall, cpu: wall, trace_bytes }
    }

    fn pair(tool: Tool, with: Sample, bare: f64) -> Pair {
        Pair { tool, with, bare: sample(bare, 0) }
    }

    #[test]
    fn runs_are_compared_with_as_many_beside_them() {
        let row = Row {
            name: "x",
            what: "y",
            events: 1_000_000_000,
            slowdown: Some(1.5),
            live: 1 << 20,
            aside: false,
            peaks: vec![(Tool::Bare, 1 << 20), (Tool::Heaptrack, 3 << 20), (Tool::Grapnel, 21 << 20)],
            pairs: vec![
                pair(Tool::Heaptrack, sample(10.0, 1_000_000_000), 4.0),
                pair(Tool::Heaptrack, sample(9.0, 1_000_000_000), 1.0),
                pair(Tool::Grapnel, sample(8.0, 3_000_000_000), 4.0),
                pair(Tool::Grapnel, sample(3.0, 3_000_000_000), 1.5),
                pair(Tool::Counting, sample(5.0, 3_000_000_000), 1.5),
                pair(Tool::Off, sample(2.0, 1), 1.0),
                pair(Tool::Sampled, sample(2.5, 1), 1.0),
            ],
        };
        let nothing = Row {
            name: NOTHING,
            events: 1,
            slowdown: None,
            live: 0,
            peaks: Vec::new(),
            pairs: vec![
                pair(Tool::Off, sample(1.0, 1), 0.5),
                pair(Tool::Sampled, sample(1.0, 1), 0.5),
                pair(Tool::Grapnel, sample(1.5, 1), 0.5),
            ],
            ..row.clone()
        };
        let aside = Row { name: "z", slowdown: None, events: 1_000, aside: true, live: 0, ..row.clone() };
        let page = page("today", &["a machine".into()], &[row, aside, nothing]);
        for line in [
            "| x | 1000000000 | 1 | 1.000, 1.000, 1.500 | 9.000, 9.100, 9.500 | 3.000, 3.500, 5.500 | 9.00, 5.75 | 2.00, 2.00 | \
             8, 7 | 2, 3 | 0.19, 0.39 | 4, 4 |",
            "| x | 8, 7 | 2, 3 | 1.00 | 3.00 | 2.0 | 20.0 |",
            "1000.0, 1000.0 by grapnel, 500.0, 500.0 by grapnel with --off",
            "| x | 1.500, 1.500 | 1.500, 1.500 | 2.000, 2.000 | 2.000, 2.000 | 1.0, 1.0 |",
            "at most 0.19 (x), at least 0.19 (x); by the median of the differences geometric mean 0.393",
            "x 2.00, 2.00 of 1.5",
            "20.0 of 40.0 MiB (x)",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }
}
