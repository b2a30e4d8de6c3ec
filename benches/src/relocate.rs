//! What the relocator's steps take, beside iced-x86's `BlockEncoder`; and the command, end to end.

use std::{
    fmt::Write as _,
    fs::File,
    hint::black_box,
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use grapnel_relocator::{CodeAddr, Isa, RelocationPlan, Window};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    peers,
    statistics::spread,
    windows::{self, Start},
};

/// How many times a pass goes over all windows, so that it takes some milliseconds.
const TURNS: usize = 50;

/// The windows of one instruction set that the relocator takes, near and far.
pub struct Subject {
    /// The instruction set.
    pub isa: Isa,
    /// Those that it takes.
    pub taken: Vec<Taken>,
    /// How many there are in all.
    pub all: usize,
}

/// A window that the relocator takes.
pub struct Taken {
    /// Where it comes from.
    pub start: Start,
    /// It, decoded.
    pub window: Window,
    /// It, planned.
    pub plan: RelocationPlan,
    /// A near and a far destination.
    pub to: [CodeAddr; 2],
}

impl Subject {
    /// Relocates every start once, and keeps those that can be.
    pub fn new(isa: Isa) -> Self {
        let starts = windows::starts(isa);
        let all = starts.len();
        let taken = starts.into_iter().filter_map(|start| {
            let window = Window::decode(isa, start.from, &start.bytes, windows::min_len(isa)).ok()?;
            let plan = RelocationPlan::new(&window).ok()?;
            let to = [windows::near(start.from), windows::far(isa, start.from)];
            to.iter().all(|&to| plan.emit(to).is_ok()).then_some(Taken { start, window, plan, to })
        });
        Self { isa, taken: taken.collect(), all }
    }

    /// Does one step with every window.
    pub fn pass(&self, step: Step) {
        let min_len = windows::min_len(self.isa);
        let decode = |taken: &Taken| Window::decode(self.isa, taken.start.from, &taken.start.bytes, min_len);
        let whole = |taken: &Taken, to| {
            let window = decode(taken)?;
            RelocationPlan::new(&window)?.emit(to)
        };
        for taken in &self.taken {
            let taken = black_box(taken);
            match step {
                Step::Decode => drop(black_box(decode(taken))),
                Step::Plan => drop(black_box(RelocationPlan::new(&taken.window))),
                Step::EmitNear => drop(black_box(taken.plan.emit(taken.to[0]))),
                Step::EmitFar => drop(black_box(taken.plan.emit(taken.to[1]))),
                Step::WholeNear => drop(black_box(whole(taken, taken.to[0]))),
                Step::WholeFar => drop(black_box(whole(taken, taken.to[1]))),
                Step::IcedNear => drop(black_box(peers::iced(&taken.start, min_len, taken.to[0]))),
                Step::IcedFar => drop(black_box(peers::iced(&taken.start, min_len, taken.to[1]))),
            }
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Bytes to a window.
    Decode,
    /// A window to a plan.
    Plan,
    /// A plan to code nearby.
    EmitNear,
    /// A plan to code far away.
    EmitFar,
    /// All three, nearby.
    WholeNear,
    /// All three, far away.
    WholeFar,
    /// iced-x86 from bytes to code nearby.
    IcedNear,
    /// iced-x86 from bytes to code far away, which it refuses where an operand is relative to RIP.
    IcedFar,
}

impl Step {
    /// Every step, in the order of the columns.
    pub const ALL: [Self; 8] = [
        Self::Decode,
        Self::Plan,
        Self::EmitNear,
        Self::EmitFar,
        Self::WholeNear,
        Self::WholeFar,
        Self::IcedNear,
        Self::IcedFar,
    ];

    /// Its name in benches.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Plan => "plan",
            Self::EmitNear => "emit near",
            Self::EmitFar => "emit far",
            Self::WholeNear => "all, near",
            Self::WholeFar => "all, far",
            Self::IcedNear => "iced, near",
            Self::IcedFar => "iced, far",
        }
    }

    /// It can be done on this instruction set.
    pub fn applies(self, isa: Isa) -> bool {
        isa == Isa::X86_64 || !matches!(self, Self::IcedNear | Self::IcedFar)
    }
}

/// The samples of one step, in nanoseconds for a window.
type Samples = Vec<f64>;

/// Measures every step of every instruction set in turn, as often as asked, and answers with a page.
///
/// # Errors
///
/// If the command can't be run.
pub fn page(grapnel: &Path, rounds: usize, lines: usize, head: &str) -> io::Result<String> {
    let subjects: Vec<Subject> = Isa::ALL.iter().map(|&isa| Subject::new(isa)).collect();
    let mut samples: Vec<[Samples; 8]> = subjects.iter().map(|_| <[Samples; 8]>::default()).collect();
    let mut commands: Vec<Samples> = vec![Samples::new(); subjects.len()];
    let inputs = subjects.iter().map(|subject| requests(subject, lines)).collect::<io::Result<Vec<_>>>()?;
    for round in 0..rounds {
        for (number, subject) in subjects.iter().enumerate() {
            for (step, samples) in Step::ALL.into_iter().zip(&mut samples[number]) {
                if step.applies(subject.isa) && !subject.taken.is_empty() {
                    samples.push(time(subject, step));
                }
            }
            commands[number].push(lines as f64 / run(grapnel, inputs[number].path())?);
        }
        eprintln!("round {}", round + 1);
    }
    let mut page = String::from(head);
    let _ = steps(&subjects, &samples, &mut page);
    let _ = ratios(&subjects[0], &samples[0], &mut page);
    let _ = throughput(&subjects, &commands, &mut page);
    Ok(page)
}

/// A pass, in nanoseconds of processor time for a window: what else runs meanwhile disturbs that less.
fn time(subject: &Subject, step: Step) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let start = now();
    for _ in 0..TURNS {
        subject.pass(step);
    }
    (now() - start) / (TURNS * subject.taken.len()) as f64
}

/// A file of requests, refused windows among them, no two of them for the same destination.
fn requests(subject: &Subject, lines: usize) -> io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new()?;
    let mut out = io::BufWriter::new(file.as_file_mut());
    let starts = windows::starts(subject.isa);
    for (number, start) in starts.iter().cycle().take(lines).enumerate() {
        let to = windows::near(start.from).add(number as u64 / starts.len() as u64 * 16);
        let hex: String = start.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(
            out,
            "{{\"isa\":\"{}\",\"from\":\"{}\",\"to\":\"{to}\",\"bytes\":\"{hex}\",\"min_len\":{}}}",
            subject.isa,
            start.from,
            windows::min_len(subject.isa)
        )?;
    }
    out.flush()?;
    drop(out);
    Ok(file)
}

/// How long the command takes for a file of requests, in seconds.
fn run(grapnel: &Path, requests: &Path) -> io::Result<f64> {
    let mut command = Command::new(grapnel);
    command.arg("relocate").stdin(File::open(requests)?).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status()?;
    let taken = start.elapsed().as_secs_f64();
    if status.success() { Ok(taken) } else { Err(io::Error::other(format!("grapnel relocate: {status}"))) }
}

fn steps(subjects: &[Subject], samples: &[[Samples; 8]], page: &mut String) -> std::fmt::Result {
    writeln!(page, "\n## Nanoseconds of processor time for a window\n")?;
    write!(page, "| | windows |")?;
    Step::ALL.iter().take(6).try_for_each(|step| write!(page, " {} |", step.name()))?;
    writeln!(page, "\n|---|---|---|---|---|---|---|---|")?;
    for (subject, samples) in subjects.iter().zip(samples) {
        write!(page, "| {} | {} of {} |", subject.isa, subject.taken.len(), subject.all)?;
        samples.iter().take(6).try_for_each(|samples| write!(page, " {} |", spread(samples, 0)))?;
        writeln!(page)?;
    }
    Ok(())
}

fn ratios(subject: &Subject, samples: &[Samples; 8], page: &mut String) -> std::fmt::Result {
    let refused = |to: usize| {
        let iced =
            |taken: &&Taken| peers::iced(&taken.start, windows::min_len(subject.isa), taken.to[to]).is_err();
        subject.taken.iter().filter(iced).count()
    };
    writeln!(page, "\n## Beside iced-x86's BlockEncoder, {}\n", subject.isa)?;
    writeln!(
        page,
        "From bytes to code with a map of offsets. The ratio is of the two passes of each round.\n"
    )?;
    writeln!(
        page,
        "| | iced-x86, ns | ratio to the relocator | windows that iced-x86 refuses |\n|---|---|---|---|"
    )?;
    for (name, to, ours, theirs) in [("near", 0, 4, 6), ("far", 1, 5, 7)] {
        let ratio: Vec<f64> =
            samples[theirs].iter().zip(&samples[ours]).map(|(iced, our)| iced / our).collect();
        let (iced, ratio) = (spread(&samples[theirs], 0), spread(&ratio, 2));
        writeln!(page, "| {name} | {iced} | {ratio} | {} of {} |", refused(to), subject.taken.len())?;
    }
    Ok(())
}

fn throughput(subjects: &[Subject], commands: &[Samples], page: &mut String) -> std::fmt::Result {
    writeln!(page, "\n## `grapnel relocate`, requests in a second of wall time\n")?;
    writeln!(page, "| | end to end, JSON in a file to JSON |\n|---|---|")?;
    for (subject, samples) in subjects.iter().zip(commands) {
        writeln!(page, "| {} | {} |", subject.isa, spread(samples, 0))?;
    }
    Ok(())
}
