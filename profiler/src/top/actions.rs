//! What is asked of the recording: by a thread of its own, since it may take its time.

use super::Message;
use super::feed::{Told, When};
use crate::control::{ControlError, ProcessStatus, Request, ask, recording_of, save_snapshot};
use crate::opened::text_of;
use grapnel_analysis::report::words::duration;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// How often the recording is asked how it stands.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// So many looks in vain, one after another, are the recording's end: it may be busy, or have been stopped for a while.
const MISSES: u32 = 3;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Marks this moment.
    Mark(String),
    /// Writes a snapshot into the current directory.
    Snapshot,
    /// Pauses the recording, or has it go on.
    Pause(bool),
}

/// What came of it, or how the recording stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// To be shown.
    Said(String),
    /// Whether it is paused.
    Paused(bool),
    /// There is no recording any more.
    Gone,
}

/// Does what it is told, and looks now and then how the recording of `pid` stands. A thread's work.
pub(super) fn run(pid: u32, actions: &Receiver<Action>, send: &Sender<Message>, feed: &Sender<Told>) {
    let say = |heard| send.send(Message::Heard(heard)).is_ok();
    let mut missed = 0;
    loop {
        let heard = match actions.recv_timeout(LOOK_EVERY) {
            Ok(action) => {
                let said = act(pid, action, feed);
                if let Some(process) = process(pid)
                    && !say(Heard::Paused(process.paused))
                {
                    return;
                }
                Heard::Said(said)
            }
            Err(RecvTimeoutError::Timeout) => match process(pid) {
                Some(process) => {
                    missed = 0;
                    Heard::Paused(process.paused)
                }
                None if missed + 1 < MISSES => {
                    missed += 1;
                    continue;
                }
                None => {
                    drop(feed.send(Told::Abandoned));
                    say(Heard::Gone);
                    break;
                }
            },
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if !say(heard) {
            return;
        }
    }
    alone(actions, send, feed);
}

/// As [`run`], where nobody records. A moment can be remembered all the same.
pub(super) fn alone(actions: &Receiver<Action>, send: &Sender<Message>, feed: &Sender<Told>) {
    for action in actions {
        let said = match action {
            Action::Mark(name) => {
                drop(feed.send(Told::CountFrom("this moment".into(), When::Now)));
                format!("{name} is not in the trace, which nobody writes; growth is counted from here")
            }
            Action::Snapshot => "nobody records any more: the trace has all there is".into(),
            Action::Pause(_) => "nobody records any more".into(),
        };
        if send.send(Message::Heard(Heard::Said(said))).is_err() {
            return;
        }
    }
}

fn process(pid: u32) -> Option<ProcessStatus> {
    let (_, status) = recording_of(pid).ok()?;
    status.processes.into_iter().find(|process| process.pid == pid)
}

fn act(pid: u32, action: Action, feed: &Sender<Told>) -> String {
    let done = match action {
        Action::Mark(name) => mark(pid, name, feed),
        Action::Snapshot => save_snapshot(pid, None).map(|path| format!("snapshot {}", text_of(&path))),
        Action::Pause(true) => ask(pid, &Request::Pause { pid }).map(|_| "the recording is paused".into()),
        Action::Pause(false) => ask(pid, &Request::Resume { pid }).map(|_| "the recording goes on".into()),
    };
    done.unwrap_or_else(|error| error.to_string())
}

fn mark(pid: u32, name: String, feed: &Sender<Told>) -> Result<String, ControlError> {
    // First, so that what is read at its place is what growth is counted from. A mark that never comes changes nothing.
    drop(feed.send(Told::CountFrom(name.clone(), When::AtItsMark)));
    let time_ns = ask(pid, &Request::Mark { pid, name: name.clone() })?;
    Ok(format!("mark {name} at {}", duration(time_ns.unwrap_or_default())))
}
