//! `grapnel attach` and `grapnel detach` on machines on which neither is there: those of 32 bits. The names are those of `attach`.

use clap::Args;
use std::ffi::OsString;
use std::ops::Range;
use std::process::ExitCode;

/// Exit status when nothing was changed in the process.
const NOT_ATTACHED: u8 = 125;

/// Options of `grapnel attach`, whatever they are.
#[derive(Args, Clone, Debug)]
pub(crate) struct AttachArgs {
    /// The process, and how to record it
    #[arg(value_name = "PID", trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// Options of `grapnel detach`.
pub(crate) type DetachArgs = AttachArgs;

/// Why nothing was recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// The machine is none on which it can be done.
    #[error(
        "grapnel can't attach to processes of 32-bit machines; `grapnel run` records a program from its start"
    )]
    Machine,
}

impl AttachError {
    pub(crate) fn exit_code(&self) -> u8 {
        NOT_ATTACHED
    }
}

/// Says that it can't be done.
pub(crate) fn run(_args: &AttachArgs) -> Result<ExitCode, AttachError> {
    Err(AttachError::Machine)
}

/// The same.
pub(crate) fn detach(_args: &DetachArgs) -> Result<ExitCode, AttachError> {
    Err(AttachError::Machine)
}

/// No agent that was brought into a process has mapped anything.
pub(crate) fn own_mappings(_pid: u32, _ledger: u64) -> Vec<Range<u64>> {
    Vec::new()
}
