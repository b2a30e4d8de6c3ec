//! Options for where symbols are looked for: the same in every subcommand that names functions.

use clap::Args;
use grapnel_analysis::symbols::SearchPath;
use std::path::PathBuf;

/// Options of every subcommand that names functions.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Symbols")]
pub(crate) struct SymbolArgs {
    /// Look for the program and its libraries below DIR instead of below /: a copy or a mount of the file system of
    /// the machine that was recorded, of any architecture
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
    /// Look for separate debug files in DIR too; may be given often
    #[arg(long = "debug-dir", value_name = "DIR")]
    debug_dirs: Vec<PathBuf>,
}

/// Why there is nowhere to look for symbols.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SymbolArgsError {
    /// A directory that was given isn't one.
    #[error("{option} {path}: {reason}; give a directory")]
    Directory {
        /// Which option.
        option: &'static str,
        /// The path.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl SymbolArgs {
    /// Where to look.
    ///
    /// # Errors
    /// When what was given is no directory: a slip of the pen would else be a report without names.
    pub(crate) fn search(&self) -> Result<SearchPath, SymbolArgsError> {
        let given = self.sysroot.iter().map(|dir| ("--sysroot", dir));
        let given = given.chain(self.debug_dirs.iter().map(|dir| ("--debug-dir", dir)));
        for (option, dir) in given {
            let reason = match dir.metadata() {
                Ok(facts) if facts.is_dir() => continue,
                Ok(_) => "it is no directory".to_owned(),
                Err(error) => error.to_string(),
            };
            return Err(SymbolArgsError::Directory { option, path: crate::opened::text_of(dir), reason });
        }
        let mut search = match &self.sysroot {
            None => SearchPath::default(),
            Some(dir) => SearchPath::of_sysroot(dir.clone()),
        };
        search.debug_dirs.extend(self.debug_dirs.iter().cloned());
        Ok(search)
    }
}
