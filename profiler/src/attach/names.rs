//! Names of functions of a process whose files lie elsewhere: below another root directory, or in mounts that we don't see.
//!
//! The paths in such a trace lead to other files here, or nowhere, and when the process has ended its own may be gone. So the
//! names go into the trace at once, from the files that the process itself sees.

use crate::opened::say;
use crate::symbolize::embed_into;
use grapnel_analysis::symbols::SearchPath;
use std::fs::{File, metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The root directory of a process, where that isn't ours. It stays for as long as this does.
#[derive(Debug)]
pub(super) struct OtherRoot(File);

impl OtherRoot {
    /// `None`: what the process sees is what we see.
    pub(super) fn of(pid: u32) -> io::Result<Option<Self>> {
        let own = |what: &str| PathBuf::from(format!("/proc/self/{what}"));
        let its = |what: &str| PathBuf::from(format!("/proc/{pid}/{what}"));
        let number = |path: PathBuf| metadata(path).map(|file| (file.dev(), file.ino()));
        let is_same = |what: &str| Ok::<_, io::Error>(number(own(what))? == number(its(what))?);
        if is_same("root")? && is_same("ns/mnt")? {
            return Ok(None);
        }
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        File::options().read(true).custom_flags(flags).open(its("root")).map(Self).map(Some)
    }

    /// Puts the names of what a trace has recorded into it.
    pub(super) fn name(&self, trace: &Path, quiet: bool) {
        // A pipe is read by somebody else.
        if !trace.metadata().is_ok_and(|file| file.is_file()) {
            return;
        }
        let root = PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        match embed_into(trace, trace, SearchPath::of_sysroot(root)) {
            Ok(_) if quiet => {}
            Ok((embedded, _)) => say(&format!(
                "the process sees other files than grapnel: {} of {} names of functions were found in them, and are in the trace",
                embedded.named,
                embedded.named + embedded.unknown,
            )),
            Err(error) => say(&format!("note: names of functions aren't in the trace: {error}")),
        }
    }
}
