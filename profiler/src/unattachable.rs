//! In the place of [`attach`](crate::attach), where nobody can be attached to: to say so.

use clap::Args;
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::process::ExitCode;

/// What is asked for, whatever it is.
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) type DetachArgs = AttachArgs;

/// Why nothing is done.
#[derive(Debug)]
pub(crate) struct Unattachable;

impl fmt::Display for Unattachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = crate::native::NAME;
        write!(
            f,
            "processes that run already can be attached to on x86-64, and this is {machine}; start the program by `grapnel run`"
        )
    }
}

impl Unattachable {
    /// As where a process can't be attached to.
    pub(crate) fn exit_code(&self) -> u8 {
        125
    }
}

pub(crate) fn run(_args: &AttachArgs) -> Result<ExitCode, Unattachable> {
    Err(Unattachable)
}

pub(crate) fn detach(_args: &DetachArgs) -> Result<ExitCode, Unattachable> {
    Err(Unattachable)
}

/// Which system call was cut short isn't known here: one of those that the kernel begins anew for nobody ends with EINTR, as
/// after SIGSTOP and SIGCONT.
pub(crate) fn begin_call_anew(_thread: u32) {}

/// Nobody is attached to here.
pub(crate) fn own_mappings(_pid: u32, _ledger: u64) -> Vec<Range<u64>> {
    Vec::new()
}
