//! What clients ask for, answered between two passes of the drain.

use super::Drain;
use crate::control::{Refusal, Reply, Request, Status};

impl Drain<'_> {
    /// Answers what was asked since the last pass.
    pub(super) fn answer(&mut self) {
        for order in self.orders.desk.take() {
            let reply = self.reply(&order.request);
            order.answer(reply);
        }
    }

    fn reply(&mut self, request: &Request) -> Result<Reply, Refusal> {
        match request {
            Request::Status => Ok(Reply::Status(self.status())),
        }
    }

    fn status(&self) -> Status {
        Status {
            grapnel: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            program: self.program.pid(),
            processes: self.active.iter().map(|recording| recording.status()).collect(),
        }
    }
}
