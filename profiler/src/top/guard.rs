//! Who gives the terminal back when grapnel is killed: a process of its own that waits for nothing else.
//!
//! It knows the terminal's modes from before, and is told when the terminal is taken and when it is given back.

use crate::watcher::Watcher;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::style::ResetColor;
use ratatui::crossterm::terminal::LeaveAlternateScreen;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::sync::OnceLock;

static GUARD: OnceLock<Watcher> = OnceLock::new();
const TAKEN: u8 = b't';
const GIVEN_BACK: u8 = b'g';

/// Has a process wait for this one's end. Where standard output is no terminal, or there can't be another process, there is
/// none.
pub(super) fn start() {
    if let Ok(modes) = tcgetattr(io::stdout())
        && io::stdout().is_terminal()
        && let Ok(watcher) = Watcher::start(c"grapnel-guard", |pipe| watch(pipe, &modes))
    {
        // Nobody else does this.
        let _ = GUARD.set(watcher);
    }
}

/// Tells it that the terminal is about to be taken.
pub(super) fn taken() {
    say(TAKEN);
}

/// Tells it that the terminal has been given back.
pub(super) fn given_back() {
    say(GIVEN_BACK);
}

fn say(word: u8) {
    if let Some(guard) = GUARD.get() {
        guard.say(&[word]);
    }
}

fn watch(mut pipe: File, before: &Termios) {
    let (mut word, mut last) = ([0], GIVEN_BACK);
    while matches!(pipe.read(&mut word), Ok(1)) {
        [last] = word;
    }
    if last == TAKEN {
        give_back(before);
    }
}

fn give_back(before: &Termios) {
    let mut out = io::stdout();
    // The modes first: these don't wait until the terminal takes what is written to it. A shell may have set its own already.
    let mut ours = before.clone();
    ours.make_raw();
    if tcgetattr(&out).is_ok_and(|now| are_alike(&now, &ours)) {
        let _ = tcsetattr(&out, OptionalActions::Now, before);
    }
    let _ = execute!(out, ResetColor, Show, LeaveAlternateScreen);
    let _ = out.flush();
}

fn are_alike(one: &Termios, other: &Termios) -> bool {
    (one.input_modes, one.output_modes, one.control_modes, one.local_modes)
        == (other.input_modes, other.output_modes, other.control_modes, other.local_modes)
}
