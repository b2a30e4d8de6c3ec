//! Signals, as messages to whoever draws.

use super::Message;
use super::screen::give_back;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// How long who draws may take to end. A terminal that takes nothing (Ctrl-S) holds it up.
const PATIENCE: Duration = Duration::from_secs(2);

/// A signal that concerns the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// One that ends, by its number.
    End(i32),
    /// To stop for a while.
    Stop,
    /// To go on.
    Continue,
}

/// Takes the signals from here on.
///
/// # Errors
/// When they can't be taken.
pub(super) fn start(send: Sender<Message>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT])?;
    let work = move || {
        for number in signals.forever() {
            let signal = match number {
                SIGTSTP => Signal::Stop,
                SIGCONT => Signal::Continue,
                number => Signal::End(number),
            };
            drop(send.send(Message::Signal(signal)));
            if let Signal::End(number) = signal {
                std::thread::sleep(PATIENCE);
                // Who draws may hold standard output for ever. The modes are given back, the rest if the terminal takes it.
                drop(std::thread::Builder::new().spawn(give_back));
                std::thread::sleep(PATIENCE);
                drop(emulate_default_handler(number));
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(work).map(drop)
}

/// Ends this process as the signal would have.
pub(super) fn end_by(number: i32) {
    give_back();
    drop(emulate_default_handler(number));
}

/// Stops until somebody has this go on. The terminal has been given back.
pub(super) fn stop() {
    drop(emulate_default_handler(SIGTSTP));
}

/// Ctrl-Z, as the terminal would have said it to all in the foreground: a shell's function waits for its end else.
pub(super) fn stop_all() {
    // To this process too, which gets it as a message.
    let _ = rustix::process::kill_current_process_group(rustix::process::Signal::TSTP);
}
