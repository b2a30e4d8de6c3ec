//! `tests/programs/older.c`, which has blocks before anybody attaches, and counts them.
//!
//! Whatever fails here fails the test that asks.

use crate::attaching::attach;
use crate::going::until;
use crate::programs;
use crate::report::{Before, Report, Site};
use crate::run::{report, temporary_dir};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Where blocks of before are said to come from.
pub const MARK: &str = "[allocated before grapnel attached]";

/// `older`, which goes on by a line at a time.
#[derive(Debug)]
pub struct Older {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Older {
    /// Starts it.
    pub fn start(how: &str) -> Self {
        Self::of(Command::new(programs::program("older")).arg(how))
    }

    /// The same, in another way.
    pub fn of(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut older = Self { child, lines };
        assert_eq!(older.stage(), (1, Before { allocations: 0, bytes: 0 }));
        older
    }

    /// Its id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Which stage it says it has come to, and what it has.
    pub fn stage(&mut self) -> (u64, Before) {
        let line = self.lines.next().expect("a line").expect("text");
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [stage, allocations, bytes] = numbers[..] else { panic!("{line}") };
        (stage, Before { allocations, bytes })
    }

    /// Goes on to the next stage.
    pub fn go_on(&mut self) -> (u64, Before) {
        self.child.stdin.as_mut().expect("its input").write_all(b"\n").expect("it goes on");
        self.stage()
    }
}

impl Drop for Older {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Attaches for a moment: the report, and what was said.
pub fn attached(dir: &Path, pid: u32) -> (Report, String) {
    let outcome = attach(dir, pid, &["--for", "0.1"]);
    assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
    (report(&dir.join("t.grapnel")), outcome.err())
}

/// The site of what was there before: it has no frame but the mark.
pub fn site(report: &Report) -> Option<&Site> {
    report.sites.iter().find(|site| site.frames.iter().any(|frame| frame.function.as_deref() == Some(MARK)))
}

/// Attaches three times to one whose threads allocate all the time. `options`: what it is told behind that.
pub fn is_as_it_counts_in_storms(command: &mut Command, options: &[&str]) {
    // Of each of its threads a block may be on its way by `realloc` when grapnel goes, and is out of the record then.
    const MOVING: u64 = 4;
    let dir = temporary_dir();
    let mut older = Older::of(command.arg("storm").args(options));
    assert_eq!(older.go_on().0, 2);
    for _ in 0..3 {
        // On a busy machine its threads may have had no time.
        let found = until("all are out of it, and have done something", || {
            let (found, said) = attached(dir.path(), older.pid());
            let is_known = found.totals.before.is_some();
            let is_busy = said.contains("in the middle of malloc");
            assert!(is_known || is_busy, "{said}");
            (is_known && !is_busy && found.totals.allocations > 0).then_some(found.totals)
        });
        let given = found.allocations + found.before.map_or(0, |before| before.allocations);
        let live = found.live_allocations..=found.live_allocations + MOVING;
        assert!(live.contains(&(given - found.frees)), "{found:?}");
    }
}
