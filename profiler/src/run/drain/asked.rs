//! What clients ask for, answered between two passes of the drain.

use super::{Drain, Orders};
use crate::control::{Refusal, Reply, Request, Status};
use crate::run::recording::Recording;
use crate::run::scans::Scans;
use grapnel_trace::Mark;

impl Drain<'_> {
    /// Answers what was asked since the last pass.
    pub(super) fn answer(&mut self, scans: &mut Scans<'_>) {
        for order in self.orders.desk.take() {
            match order.request {
                Request::Leaks { pid, wanted } => match self.recording_of(pid) {
                    Ok(recording) => scans.ask(recording, order, wanted),
                    Err(refusal) => order.answer(Err(refusal)),
                },
                _ => {
                    let reply = self.reply(&order.request);
                    order.answer(reply);
                }
            }
        }
    }

    /// Writes the snapshots that programs asked for.
    pub(super) fn dump_wishes(&mut self) {
        for recording in &mut self.active {
            dump_wish(self.orders, recording);
        }
    }

    /// A process has ended, and may have asked for a snapshot at its end.
    pub(super) fn dump_last_wish(&self, recording: &mut Recording) {
        recording.drain();
        dump_wish(self.orders, recording);
    }

    fn reply(&mut self, request: &Request) -> Result<Reply, Refusal> {
        match request {
            Request::Status {} => Ok(Reply::Status(self.status())),
            Request::Mark { pid, name } => {
                let mark = Mark::Named(name.clone().into_bytes());
                let time_ns = self.recording_of(*pid)?.mark(mark);
                Ok(Reply::Marked(time_ns))
            }
            Request::Pause { pid } | Request::Resume { pid } => {
                let paused = matches!(request, Request::Pause { .. });
                self.recording_of(*pid)?.pause(paused);
                Ok(Reply::Done)
            }
            // They have to wait: see above.
            Request::Leaks { .. } => Err(Refusal::Busy),
            Request::Snapshot { pid } => self.recording_of(*pid)?.snapshot().map(Reply::Snapshot),
        }
    }

    /// The recording of this process; grapnel's own number means PROGRAM.
    fn recording_of(&mut self, pid: u32) -> Result<&mut Recording, Refusal> {
        let program = self.program;
        let is_own = pid == std::process::id();
        let is_it = |recording: &&mut Recording| match is_own {
            true => recording.id == program,
            false => recording.id.pid() == pid,
        };
        self.active.iter_mut().find(is_it).ok_or(Refusal::NotRecorded(pid))
    }

    fn status(&self) -> Status {
        Status {
            grapnel: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            program: self.program.pid(),
            processes: self.active.iter().map(Recording::status).collect(),
        }
    }
}

fn dump_wish(orders: &Orders, recording: &mut Recording) {
    if recording.take_wish()
        && let Some(dumps) = &orders.dumps
        && let Ok(source) = recording.snapshot()
    {
        dumps.write(source);
    }
}
