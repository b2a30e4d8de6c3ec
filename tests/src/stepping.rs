//! A program that allocates when it is told to, while it is recorded.

use crate::going::Going;
use crate::run::Case;
use std::io::{BufRead, BufReader, Write};

/// Allocates and keeps by its input's lines: a number of blocks each, or `free`.
const STEPS: &str = "
import ctypes, sys
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
kept = []
for line in sys.stdin:
    if line == 'free\\n':
        while kept: libc.free(kept.pop())
    else:
        kept += [libc.malloc(54321) for n in range(int(line))]
    print('done', flush=True)
";

/// A program that allocates when it is told to.
#[derive(Debug)]
pub struct Stepping {
    /// Its recording.
    pub going: Going,
    answers: BufReader<std::process::ChildStdout>,
}

impl Stepping {
    /// Begins to record it, with these options of grapnel's.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn new(options: &[&str]) -> Self {
        let case = Case::new("/usr/bin/python3").args(["-c", STEPS]).env("PYTHONMALLOC", "malloc");
        let case = options.iter().fold(case, |case, option| case.option(option));
        let mut going = Going::new(&case);
        let answers = BufReader::new(going.child.stdout.take().unwrap());
        Self { going, answers }
    }

    /// Has it allocate so many blocks of 54,321 bytes, or `free` all.
    ///
    /// # Panics
    /// If it doesn't.
    pub fn step(&mut self, line: &str) {
        writeln!(self.going.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "done\n");
    }

    /// Asks its recording.
    ///
    /// # Panics
    /// If that says no.
    pub fn ask(&self, what: &str, more: &[&str]) -> String {
        let pid = self.going.pid();
        let outcome = self.going.grapnel(&[&[what, &pid][..], more].concat());
        assert!(outcome.status.success(), "{what}: {}", outcome.err());
        outcome.out()
    }
}
