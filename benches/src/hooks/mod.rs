//! What a call of a hooked empty function costs, and what putting hooks in takes, beside other engines.

use std::{
    fmt::Write as _,
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

pub mod engine;
pub mod functions;
pub mod peers;
pub mod subject;

use functions::PROBED;
use subject::Engine;

use crate::statistics::{median, spread};

const FRIDA: &str = include_str!("../inputs/frida_hooks.py");

/// Frida's ways to hook one function.
const FRIDA_WAYS: [&str; 5] =
    ["replace", "replaceFast", "listener to entry", "listener to entry and return", "probe"];

/// Frida's ways to hook many.
const FRIDA_INSTALLS: [&str; 2] = ["replaceFast", "listener to entry and return"];

/// How many hooks are put in at once.
const COUNTS: [usize; 3] = [1, 1000, functions::MANY];

/// A process that is told what to do in lines.
struct Told {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Told {
    fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (Some(to), Some(from)) = (to, from) else { return Err(io::Error::other("no pipes")) };
        Ok(Self { child, to, from: BufReader::new(from) })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(io::Error::other(format!("the process has ended: {status}")));
        }
        Ok(line.trim_end_matches('\n').to_owned())
    }

    fn ask(&mut self, line: &str) -> io::Result<String> {
        writeln!(self.to, "{line}")?;
        self.to.flush()?;
        self.line()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A way to hook a function, and what calls cost.
struct Row {
    name: String,
    address: usize,
    refused: Option<String>,
    samples: Vec<f64>,
}

/// A way to hook many, and for each count the microseconds in and out, or why it was refused.
struct Many {
    name: String,
    samples: [Result<[Vec<f64>; 2], String>; 3],
}

impl Many {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), samples: [(); 3].map(|()| Ok([Vec::new(), Vec::new()])) }
    }
}

struct Subject {
    version: String,
    process: Told,
    /// The other process that hooks the functions, if there is one.
    driver: Option<Told>,
    rows: Vec<Row>,
    many: Vec<Many>,
}

impl Subject {
    fn start(engine: Engine) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["hooked", engine.name()]);
        let mut process = Told::start(command)?;
        let (mut rows, mut many, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let line = process.line()?;
            let fields: Vec<&str> = line.splitn(3, '\t').collect();
            let address = || {
                let text = fields.get(2).copied().unwrap_or_default();
                text.parse().map_err(|error| io::Error::other(format!("`{line}`: {error}")))
            };
            match fields[..] {
                ["ready", ..] => break,
                ["way", name, _] => {
                    rows.push(Row {
                        name: name.to_owned(),
                        address: address()?,
                        refused: None,
                        samples: Vec::new(),
                    });
                }
                ["refused", name, why] => rows.push(Row {
                    name: name.to_owned(),
                    address: 0,
                    refused: Some(why.to_owned()),
                    samples: Vec::new(),
                }),
                ["install", name, _] => many.push(Many::new(name)),
                ["address", name, _] => addresses.push((name.to_owned(), address()?)),
                _ => return Err(io::Error::other(format!("`{line}` was not expected"))),
            }
        }
        let mut subject = Self { version: engine.name().to_owned(), process, driver: None, rows, many };
        if engine == Engine::Frida {
            subject.drive(&addresses)?;
        }
        Ok(subject)
    }

    /// Starts Frida beside it, which hooks the functions that are to spare.
    fn drive(&mut self, addresses: &[(String, usize)]) -> io::Result<()> {
        let mut command = Command::new("python3");
        command.args(["-c", FRIDA]).arg(self.process.child.id().to_string());
        let single_words = addresses.iter().filter(|(name, _)| !name.contains(' '));
        command.args(single_words.map(|(name, address)| format!("{name}={address}")));
        let mut driver = Told::start(command)?;
        self.version = driver.line()?;
        let of =
            |name: &str| addresses.iter().find(|(one, _)| one == name).map_or(0, |(_, address)| *address);
        for (number, name) in FRIDA_WAYS.iter().enumerate() {
            let address = of("spare") + number * of("spare step");
            let at = if *name == "probe" { address + PROBED } else { address };
            let answer = driver.ask(&format!("way\t{name}\t{at}"))?;
            let refused = answer.strip_prefix("refused\t").map(str::to_owned);
            self.rows.push(Row { name: (*name).to_owned(), address, refused, samples: Vec::new() });
        }
        self.many.extend(FRIDA_INSTALLS.iter().map(|name| Many::new(name)));
        self.driver = Some(driver);
        Ok(())
    }

    /// One round: each way is measured once.
    fn round(&mut self, warm: bool) -> io::Result<()> {
        for row in self.rows.iter_mut().filter(|row| row.refused.is_none()) {
            let answer = self.process.ask(&format!("call\t{}", row.address))?;
            let time = answer.parse().map_err(|_| io::Error::other(format!("`{answer}` is no time")))?;
            if warm {
                row.samples.push(time);
            }
        }
        Ok(())
    }

    /// One round of many hooks.
    fn install(&mut self) -> io::Result<()> {
        let process = self.driver.as_mut().unwrap_or(&mut self.process);
        for many in &mut self.many {
            for (count, samples) in COUNTS.iter().zip(&mut many.samples) {
                let Ok([put_in, taken_out]) = samples else { continue };
                let answer = process.ask(&format!("install\t{}\t{count}", many.name))?;
                let times: Vec<f64> = answer.split('\t').filter_map(|time| time.parse().ok()).collect();
                match times[..] {
                    [one, two] => {
                        put_in.push(one);
                        taken_out.push(two);
                    }
                    _ => *samples = Err(answer.trim_start_matches("refused\t").to_owned()),
                }
            }
        }
        Ok(())
    }
}

/// Measures these engines in turn, in each round, and writes the page.
///
/// # Errors
///
/// If a process can't be started or ends early.
pub fn page(engines: &[Engine], rounds: usize, head: &str) -> io::Result<String> {
    let mut missing = Vec::new();
    let mut subjects = Vec::new();
    for &engine in engines {
        match Subject::start(engine) {
            Ok(subject) => subjects.push(subject),
            Err(error) if engine == Engine::Frida => {
                missing.push(format!("Frida was left out ({error}); it comes with `pip install frida`."));
            }
            Err(error) => return Err(error),
        }
    }
    for round in 0..=rounds {
        for subject in &mut subjects {
            subject.round(round > 0)?;
        }
    }
    for _ in 0..rounds.div_ceil(3) {
        for subject in &mut subjects {
            subject.install()?;
        }
    }
    let mut page = head.to_owned();
    for line in missing {
        let _ = writeln!(page, "\n{line}");
    }
    let _ = calls(&subjects, &mut page);
    let _ = installs(&subjects, &mut page);
    Ok(page)
}

fn calls(subjects: &[Subject], page: &mut String) -> std::fmt::Result {
    writeln!(page, "\n## A call of an empty function\n")?;
    writeln!(
        page,
        "| engine | hook | ns | beyond one more jump, ns | ratio to a plain call |\n|---|---|---|---|---|"
    )?;
    for subject in subjects {
        let of = |name: &str| subject.rows.iter().find(|row| row.name == name).map(|row| &row.samples);
        let (Some(plain), Some(jump)) = (of("plain call"), of("one more jump")) else { continue };
        for row in &subject.rows {
            if let Some(why) = &row.refused {
                writeln!(page, "| {} | {} | refused: {why} | | |", subject.version, row.name)?;
                continue;
            }
            let beyond: Vec<f64> = row.samples.iter().zip(jump).map(|(one, jump)| one - jump).collect();
            let ratio: Vec<f64> = row.samples.iter().zip(plain).map(|(one, plain)| one / plain).collect();
            let (time, ratio) = (spread(&row.samples, 2), spread(&ratio, 2));
            writeln!(
                page,
                "| {} | {} | {time} | {:.2} | {ratio} |",
                subject.version,
                row.name,
                median(&beyond)
            )?;
        }
    }
    Ok(())
}

fn installs(subjects: &[Subject], page: &mut String) -> std::fmt::Result {
    writeln!(page, "\n## Putting many hooks in and taking them out, in microseconds\n")?;
    write!(page, "| engine | hooks |")?;
    COUNTS.iter().try_for_each(|count| write!(page, " {count} in | {count} out |"))?;
    writeln!(page, "\n|---|---|---|---|---|---|---|---|")?;
    for subject in subjects {
        for many in &subject.many {
            write!(page, "| {} | {} |", subject.version, many.name)?;
            for samples in &many.samples {
                match samples {
                    Ok([put_in, taken_out]) => {
                        write!(page, " {} | {} |", spread(put_in, 0), spread(taken_out, 0))?
                    }
                    Err(why) => write!(page, " refused: {why} | |")?,
                }
            }
            writeln!(page)?;
        }
    }
    Ok(())
}
