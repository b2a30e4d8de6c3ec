//! Control of a recording that goes on: who may ask, what can be asked for, and how the drain is told.
//!
//! Each recording has a Unix socket in a directory that only its owner can enter (`directory`). A request is a line of
//! JSON, an answer too (`protocol`). The threads that talk to clients (`server`) never touch what is recorded: they leave
//! an order at the `desk`, which the drain looks at between two passes. So a client that is stuck, or talks nonsense, holds
//! up one thread of a bounded number, and never the drain. The socket is the command's: in the target nothing is opened.

mod client;
mod commands;
mod desk;
mod directory;
mod protocol;
mod server;

pub(crate) use commands::{ListArgs, StatusArgs, list, status};
pub(crate) use desk::{Desk, Reply};
pub(crate) use protocol::{ProcessStatus, Refusal, Request, Status};
pub(crate) use server::Server;
