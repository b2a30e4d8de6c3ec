//! `grapnel agent-path`: the agent as a file that stays, for programs that preload it without grapnel.
//!
//! It lies below the user's cache directory, in a folder that is named after its contents. So several versions lie beside
//! each other, and what a running program has mapped is never changed. Whoever can write there can have programs run other
//! code: the folders must belong to the user, and to nobody else.

use crate::run::agent_file;
use crate::whole_file;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The file's name.
const NAME: &str = "libgrapnel_agent.so";

/// Why there is no such file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentPathError {
    #[error("there is no place for the agent: set XDG_CACHE_HOME or HOME to an absolute path")]
    NoPlace,
    #[error(
        "{path}: this is not the user's own folder, or others may write there; remove it, or set XDG_CACHE_HOME to another"
    )]
    Foreign { path: String },
    #[error(
        "{path}: the path has a character that separates libraries in LD_PRELOAD; set XDG_CACHE_HOME to another"
    )]
    Separator { path: String },
    #[error("{path}: the agent can't be written: {error}; set XDG_CACHE_HOME to a folder that can be")]
    Write { path: String, error: io::Error },
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn cache() -> Result<PathBuf, AgentPathError> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".cache"));
    absolute("XDG_CACHE_HOME").or_else(home).ok_or(AgentPathError::NoPlace)
}

/// 64 bits of the agent's bytes, by FNV-1a: enough to tell versions apart, and the bytes are compared besides.
fn name_of(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{}-{hash:016x}", env!("CARGO_PKG_VERSION"))
}

/// Whether only this user can change what is there.
fn is_own(facts: &fs::Metadata) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    facts.uid() == rustix::process::geteuid().as_raw() && facts.mode() & OTHERS_WRITE == 0
}

fn make_folder(path: &Path) -> Result<(), AgentPathError> {
    let failed = |error| AgentPathError::Write { path: shown(path), error };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    // Of a symbolic link the link itself is judged.
    let facts = path.symlink_metadata().map_err(failed)?;
    if facts.is_dir() && is_own(&facts) { Ok(()) } else { Err(AgentPathError::Foreign { path: shown(path) }) }
}

/// Whether a whole file of ours is there.
fn is_there(path: &Path, bytes: &[u8]) -> bool {
    let own = path.symlink_metadata().is_ok_and(|facts| facts.is_file() && is_own(&facts));
    own && fs::read(path).is_ok_and(|found| found == bytes)
}

/// Sees to it that the file is there, and prints its path.
pub(crate) fn run() -> Result<ExitCode, AgentPathError> {
    let bytes = agent_file::bytes();
    let cache = cache()?;
    let folder = cache.join("grapnel").join(name_of(bytes));
    let path = folder.join(NAME);
    if path.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
        return Err(AgentPathError::Separator { path: shown(&path) });
    }
    fs::create_dir_all(&cache).map_err(|error| AgentPathError::Write { path: shown(&cache), error })?;
    make_folder(&cache.join("grapnel"))?;
    make_folder(&folder)?;
    if !is_there(&path, bytes) {
        let write = whole_file::replace(&path, 0o500, None, |out| out.write_all(bytes));
        write.map_err(|error| AgentPathError::Write { path: shown(&path), error })?;
    }
    let mut line = path.into_os_string().into_encoded_bytes();
    line.push(b'\n');
    Ok(crate::cli::print(&line))
}
