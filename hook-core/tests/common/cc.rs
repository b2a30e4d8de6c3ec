//! Building libraries for tests.

use std::process::Command;

/// A C compiler for the machine that the tests run on. Under an emulator `GRAPNEL_CC` says which, with its options.
pub(crate) fn command() -> Command {
    let words = std::env::var("GRAPNEL_CC").unwrap_or_else(|_| String::from("cc"));
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().expect("a compiler in GRAPNEL_CC"));
    command.args(words);
    command
}
