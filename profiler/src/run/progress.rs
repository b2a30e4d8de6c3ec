//! The line that a person sees on a terminal while the program runs.
//!
//! # Safety
//! System calls that ask about a terminal, into a live structure.

use super::drain::{Orders, Progress};
use grapnel_analysis::report::words;
use std::io::{IsTerminal, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Before this long nobody wonders.
const FIRST: Duration = Duration::from_millis(500);
const EVERY: Duration = Duration::from_millis(200);

/// Whether to show it: to a person, in front.
fn is_wanted() -> bool {
    let stderr = std::io::stderr();
    if !stderr.is_terminal() {
        return false;
    }
    // SAFETY: asks about a descriptor that stays open, into a live structure. In the background a write could stop us; a
    // terminal that neither gathers lines nor shows what is typed belongs to a full-screen program.
    unsafe {
        let mut terminal: libc::termios = std::mem::zeroed();
        libc::tcgetpgrp(libc::STDERR_FILENO) == libc::getpgrp()
            && libc::tcgetattr(libc::STDERR_FILENO, &mut terminal) == 0
            && terminal.c_lflag & libc::ICANON != 0
            && terminal.c_lflag & libc::ECHO != 0
    }
}

/// Shows the line until PROGRAM is over, then takes it away.
pub(crate) fn show(progress: &Progress, orders: &Orders) {
    let start = Instant::now();
    let mut next = FIRST;
    let mut shown = false;
    while !orders.over.load(Ordering::Acquire) {
        // Unparked when all is over.
        std::thread::park_timeout(next.saturating_sub(start.elapsed()));
        if orders.over.load(Ordering::Acquire) || start.elapsed() < next || !is_wanted() {
            next = next.max(start.elapsed() + EVERY);
            continue;
        }
        next = start.elapsed() + EVERY;
        shown = true;
        let events = progress.events.load(Ordering::Relaxed);
        let live = progress.live_bytes.load(Ordering::Relaxed);
        let line = format!(
            "grapnel: {:.1} s, {} events, {} live",
            start.elapsed().as_secs_f64(),
            words::grouped(events),
            words::human_bytes(live),
        );
        let _ = write!(std::io::stderr(), "\r\x1b[2K{line}\r");
    }
    if shown {
        let _ = write!(std::io::stderr(), "\r\x1b[2K");
    }
}
