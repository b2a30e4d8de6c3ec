//! The process whose functions are hooked. It is told what to do in lines on its standard input, and answers each with one.

use std::{
    hint::black_box,
    io::{self, BufRead, Write},
    time::Instant,
};

use super::{
    engine::{self, Install, Refused},
    functions::{self, replacement},
    peers,
};
use crate::statistics::median;

/// So few that a pass is over before another program gets the processor, and so many passes that most are.
const CALLS: u32 = 5000;
const PASSES: usize = 21;

/// Which engine hooks the functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Engine {
    /// This one.
    Grapnel,
    /// retour, from crates.io.
    Retour,
    /// Dobby, in the binary that the crate `dobby-sys` brings along.
    Dobby,
    /// Frida, which comes from outside: the process itself hooks nothing.
    Frida,
}

impl Engine {
    /// All, in the order of the table.
    pub const ALL: [Self; 4] = [Self::Grapnel, Self::Frida, Self::Dobby, Self::Retour];

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grapnel => "grapnel",
            Self::Retour => "retour",
            Self::Dobby => "dobby",
            Self::Frida => "frida",
        }
    }

    fn ways(self) -> &'static [engine::Way] {
        match self {
            Self::Grapnel => &engine::GRAPNEL,
            Self::Retour => &peers::RETOUR,
            Self::Dobby => &peers::DOBBY,
            Self::Frida => &[],
        }
    }

    fn installs(self) -> &'static [Install] {
        match self {
            Self::Grapnel => &engine::GRAPNEL_MANY,
            Self::Retour => &peers::RETOUR_MANY,
            Self::Dobby => &peers::DOBBY_MANY,
            Self::Frida => &[],
        }
    }
}

/// Nanoseconds of the machine's monotonic clock, for an engine that comes from outside.
extern "C" fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Hooks its functions, and does what it is told until its input ends.
///
/// # Errors
///
/// If it can't read or write, or is told what it doesn't know.
pub fn run(engine: Engine) -> Result<(), Refused> {
    let mut out = io::stdout().lock();
    for (name, function, result) in engine::calls(engine.ways()) {
        match result {
            Ok(()) => writeln!(out, "way\t{name}\t{}", function.addr())?,
            Err(error) => writeln!(out, "refused\t{name}\t{error}")?,
        }
    }
    for (name, _) in engine.installs() {
        writeln!(out, "install\t{name}\t0")?;
    }
    for (name, address) in [
        ("replacement", (replacement as *const ()).addr()),
        ("now", (now as *const ()).addr()),
        ("many", functions::many(0).addr()),
        ("step", functions::many(1).addr() - functions::many(0).addr()),
        ("spare", functions::empty(1).addr()),
        ("spare step", functions::empty(2).addr() - functions::empty(1).addr()),
    ] {
        writeln!(out, "address\t{name}\t{address}")?;
    }
    writeln!(out, "ready\t\t0")?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let fields: Vec<&str> = line.split('\t').collect();
        let answer = match fields[..] {
            ["call", address] => format!("{:.3}", call(address.parse()?)),
            ["install", name, count] => {
                install(engine, name, count.parse()?).unwrap_or_else(|error| format!("refused\t{error}"))
            }
            _ => return Err(format!("`{line}` is no command").into()),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// Nanoseconds per call.
fn call(address: usize) -> f64 {
    // SAFETY: the addresses are those of this process's functions, which take nothing and return an integer.
    let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(black_box(address)) };
    let pass = || {
        let start = Instant::now();
        for _ in 0..CALLS {
            black_box(function());
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    pass();
    median(&(0..PASSES).map(|_| pass()).collect::<Vec<_>>())
}

/// Microseconds to put the hooks in, and to take them out.
fn install(engine: Engine, name: &str, count: usize) -> Result<String, Refused> {
    let found = engine.installs().iter().find(|(one, _)| *one == name);
    let (_, install) = found.ok_or_else(|| format!("{} has no way called `{name}`", engine.name()))?;
    let start = Instant::now();
    let installed = install(count)?;
    let put_in = start.elapsed();
    let start = Instant::now();
    installed.remove()?;
    let taken_out = start.elapsed();
    Ok(format!("{:.1}\t{:.1}", put_in.as_secs_f64() * 1e6, taken_out.as_secs_f64() * 1e6))
}
