//! Options for where symbols are looked for: the same in every subcommand that names functions.

use crate::opened::{say, text_of};
use clap::Args;
use grapnel_analysis::symbols::{Debuginfod, DebuginfodError, Limits, SearchPath};
use std::path::PathBuf;
use std::time::Duration;

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
    /// Ask debuginfod servers for debug files that aren't here: those at URLS, with spaces between them [default:
    /// $DEBUGINFOD_URLS]. They learn the build ids. What they send is kept in the user's cache
    #[arg(long, value_name = "URLS", num_args = 0..=1, require_equals = true)]
    debuginfod: Option<Option<String>>,
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
    /// There is no server that can be asked.
    #[error("--debuginfod: {0}")]
    Debuginfod(#[from] DebuginfodError),
    /// There is no place to keep what servers send.
    #[error("--debuginfod: there is nowhere to keep files; set HOME or XDG_CACHE_HOME")]
    NoCache,
    /// A limit in the environment is no number.
    #[error("{variable} is set to {value:?}, which is no number; set it to {unit}, or not at all")]
    Number {
        /// The variable.
        variable: &'static str,
        /// What it is.
        value: String,
        /// What it should be.
        unit: &'static str,
    },
}

impl SymbolArgs {
    /// Where to look.
    ///
    /// # Errors
    /// When what was given is no directory: a slip of the pen would else be a report without names.
    pub(crate) fn search(&self) -> Result<SearchPath, SymbolArgsError> {
        self.search_saying(say)
    }

    /// As [`SymbolArgs::search`]; `say` is told what is fetched from where.
    ///
    /// # Errors
    /// As [`SymbolArgs::search`].
    pub(crate) fn search_saying(&self, say: fn(&str)) -> Result<SearchPath, SymbolArgsError> {
        let given = self.sysroot.iter().map(|dir| ("--sysroot", dir));
        let given = given.chain(self.debug_dirs.iter().map(|dir| ("--debug-dir", dir)));
        for (option, dir) in given {
            let reason = match dir.metadata() {
                Ok(facts) if facts.is_dir() => continue,
                Ok(_) => "it is no directory".to_owned(),
                Err(error) => error.to_string(),
            };
            return Err(SymbolArgsError::Directory { option, path: text_of(dir), reason });
        }
        let mut search = match &self.sysroot {
            None => SearchPath::default(),
            Some(dir) => SearchPath::of_sysroot(dir.clone()),
        };
        search.debug_dirs.extend(self.debug_dirs.iter().cloned());
        if let Some(urls) = &self.debuginfod {
            let urls = urls.clone().or_else(|| var("DEBUGINFOD_URLS")).unwrap_or_default();
            search.debuginfod = Some(Debuginfod::new(&urls, cache()?, limits()?, say)?);
        }
        Ok(search)
    }
}

/// A variable of the environment, unless it is empty or no text.
fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// `~/.cache/grapnel/debuginfod`, or as the XDG Base Directory Specification has it.
fn cache() -> Result<PathBuf, SymbolArgsError> {
    let base = var("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let base = base.or_else(|| Some(PathBuf::from(var("HOME")?).join(".cache")));
    Ok(base.ok_or(SymbolArgsError::NoCache)?.join("grapnel/debuginfod"))
}

/// The limits that elfutils' client has, by the same variables; 0 or less is none there, and the default here.
fn limits() -> Result<Limits, SymbolArgsError> {
    let number = |variable: &'static str, unit: &'static str| {
        let Some(value) = var(variable) else { return Ok(None) };
        match value.trim().parse::<i64>() {
            Ok(number) => Ok(u64::try_from(number).ok().filter(|&number| number > 0)),
            Err(_) => Err(SymbolArgsError::Number { variable, value, unit }),
        }
    };
    let mut limits = Limits::default();
    if let Some(seconds) = number("DEBUGINFOD_TIMEOUT", "seconds")? {
        limits.pause = Duration::from_secs(seconds);
    }
    if let Some(seconds) = number("DEBUGINFOD_MAXTIME", "seconds")? {
        limits.whole = Duration::from_secs(seconds);
    }
    if let Some(size) = number("DEBUGINFOD_MAXSIZE", "bytes")? {
        limits.size = size;
    }
    Ok(limits)
}
