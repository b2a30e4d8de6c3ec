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
mod dumps;
mod memory;
mod peer;
mod protocol;
mod server;
mod snapshot;
mod watch;

pub(crate) use client::{Client, ControlError, recording_of, recordings};
pub(crate) use commands::{ListArgs, MarkArgs, PidArgs, SnapshotArgs, StatusArgs};
pub(crate) use commands::{ask, list, mark, pause, resume, save_snapshot, snapshot, status};
pub(crate) use desk::{Desk, Order, Reply};
pub(crate) use dumps::Dumps;
pub(crate) use memory::available_memory;
pub(crate) use protocol::{Answer, Figures, ProcessStatus, Refusal, Request, Status};
pub(crate) use server::Server;
pub(crate) use snapshot::{SnapshotSource, to_file};
pub(crate) use watch::{Triggers, dump_all, watch};
