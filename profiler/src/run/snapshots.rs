//! When snapshots are written without anybody asking: options of `grapnel run` and `grapnel attach`.

use super::signals::OnSignal;
use crate::control::{Desk, Dumps, Triggers, dump_all, watch};
use crate::sizes::size;
use clap::{Args, ValueEnum};
use std::ffi::c_int;
use std::sync::Arc;

/// Options that say when snapshots are written.
#[derive(Args, Clone, Debug)]
pub(crate) struct SnapshotOptions {
    /// Write a snapshot beside the trace when grapnel itself gets this signal, instead of passing it on
    #[arg(long, value_name = "SIGNAL", value_enum)]
    snapshot_on: Option<Signal>,
    /// Write a snapshot when so many bytes are live, and each time so many more are
    #[arg(long, value_name = "SIZE", value_parser = step)]
    snapshot_at: Option<u64>,
    /// Write a snapshot when memory is about to be used up: a twentieth is left of what a control group may have, or of the
    /// machine's
    #[arg(long)]
    snapshot_before_oom: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Signal {
    #[value(name = "SIGUSR1", alias = "USR1")]
    Usr1,
    #[value(name = "SIGUSR2", alias = "USR2")]
    Usr2,
}

fn step(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("it is 0".into()),
        step => Ok(step),
    }
}

impl SnapshotOptions {
    /// Whether the live bytes have to be known.
    pub(crate) fn need_totals(&self) -> bool {
        self.snapshot_at.is_some()
    }

    /// Looks from here on whether one is due, in a thread that ends with the recording.
    pub(crate) fn start(&self, desk: &Arc<Desk>, dumps: &Dumps, program: u32) {
        let triggers = Triggers { bytes: self.snapshot_at, memory: self.snapshot_before_oom };
        let watches = triggers.bytes.is_some() || triggers.memory;
        if watches || self.snapshot_on.is_some() {
            dumps.prepare();
        }
        if watches {
            let (desk, dumps) = (Arc::clone(desk), dumps.clone());
            let work = move || watch(&desk, &dumps, triggers, program);
            // Without the thread the recording goes on.
            drop(std::thread::Builder::new().name("watch".into()).spawn(work));
        }
    }

    /// The signal that a snapshot is written on.
    pub(crate) fn number(&self) -> Option<c_int> {
        Some(match self.snapshot_on? {
            Signal::Usr1 => libc::SIGUSR1,
            Signal::Usr2 => libc::SIGUSR2,
        })
    }

    /// What a signal does that isn't passed on.
    pub(crate) fn signal(&self, desk: &Arc<Desk>, dumps: Option<&Dumps>) -> Option<OnSignal> {
        let number = self.number()?;
        let (desk, dumps) = (Arc::clone(desk), dumps?.clone());
        // The recording may be over: then there is nothing left to write.
        Some(OnSignal { number, work: Box::new(move || drop(dump_all(&desk, &dumps))) })
    }
}
