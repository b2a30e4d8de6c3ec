//! Tokens: read from files, since every user of a machine can read a command line.

use std::io::{self, Read};
use std::path::Path;

/// The longest token that is read.
const MAX_TOKEN: u64 = 4096;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SecretError {
    /// It can't be read.
    #[error("{option} {path}: {error}")]
    Read { option: &'static str, path: String, error: io::Error },
    /// It is none.
    #[error(
        "{option} {path}: a token has at least {shortest} printable characters and no spaces; `openssl rand -hex 32` makes one"
    )]
    Bad { option: &'static str, path: String, shortest: usize },
    /// It is too long.
    #[error("{option} {path}: longer than {MAX_TOKEN} bytes; `openssl rand -hex 32` makes a token")]
    Long { option: &'static str, path: String },
    /// Others can read it.
    #[error("{option} {path}: others can read it; `chmod 600` it")]
    Open { option: &'static str, path: String },
}

/// The token in a file that nobody else can read, which an option names. It has as many characters as `shortest` at least.
///
/// # Errors
/// When there is none.
pub(crate) fn token_of(option: &'static str, path: &Path, shortest: usize) -> Result<String, SecretError> {
    use std::os::unix::fs::MetadataExt;
    let text = || path.display().to_string();
    let failed = |error| SecretError::Read { option, path: text(), error };
    let file = std::fs::File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.mode() & 0o077 != 0 {
        return Err(SecretError::Open { option, path: text() });
    }
    let mut token = String::new();
    file.take(MAX_TOKEN + 1).read_to_string(&mut token).map_err(failed)?;
    // Its first part would do for all of it.
    if token.len() as u64 > MAX_TOKEN {
        return Err(SecretError::Long { option, path: text() });
    }
    let token = token.trim_end();
    let is_good = token.len() >= shortest && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_good { Ok(token.to_owned()) } else { Err(SecretError::Bad { option, path: text(), shortest }) }
}
