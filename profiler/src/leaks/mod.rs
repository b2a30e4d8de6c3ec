//! Leaks by reachability: `grapnel leaks`, and the look at a process that goes before.
//!
//! - [`stop`]: all threads of a process, stopped, with their [`registers`]; `under_way`, [`handled`], `arm`: what they waited in,
//!   and begin anew where the stop ended it;
//! - [`maps`], [`memory`]: what it has mapped, and what is in there; [`mod@copy`]: what was in there at one moment;
//! - [`roots`], [`names`]: what of that blocks are held by, and what it is called;
//! - [`job`]: all of this together, beside the drain;
//! - [`show`]: what a trace says of it; [`of_process`]: the trace of a recording that goes on, once it was looked at.

#[cfg(any(test, target_arch = "arm"))]
#[cfg_attr(not(target_arch = "arm"), expect(dead_code, reason = "another machine's, for its tests"))]
mod arm;
mod copy;
mod handled;
mod job;
mod maps;
mod memory;
mod names;
mod of_process;
mod registers;
mod roots;
mod show;
mod stop;
#[cfg(any(test, not(target_arch = "x86_64")))]
#[cfg_attr(target_arch = "x86_64", expect(dead_code, reason = "other machines', for their tests"))]
pub(crate) mod under_way;

pub(crate) use handled::is_handled;
pub(crate) use job::{Job, JobError, Running, Stage, prepare};
pub(crate) use maps::have_session;
pub(crate) use memory::present_pages;
pub(crate) use registers::own_mappings;
pub(crate) use roots::Include;
pub(crate) use show::{LeaksArgs, run};
pub(crate) use stop::copy as copy_bytes;
pub(crate) use stop::{StopError, Stopped};

use clap::{Args, ValueEnum};
use grapnel_analysis::leaks::{Interior, Policy};
use serde::{Deserialize, Serialize};

/// Options that say what counts as a pointer, and what as a root.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Looks for leaks")]
pub(crate) struct PolicyArgs {
    /// Which pointers to the inside of a block hold it. What only others lead to is possibly lost [default: all]
    #[arg(long, value_enum, value_name = "WHICH")]
    interior: Option<Inside>,
    /// Bits that are no part of an address where pointers carry tags, as 0xff00000000000000 for the uppermost byte
    #[arg(long, value_name = "MASK", value_parser = mask)]
    tags: Option<u64>,
    /// Memory that the program maps itself (mmap, shmat, sbrk) holds no blocks
    #[arg(long)]
    no_mappings: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Inside {
    /// All, as LeakSanitizer has it
    #[default]
    All,
    /// None: pointers must lead to a block's first byte
    Start,
    /// Those that arrays of new[], strings, and base classes have, as memcheck's heuristics
    Known,
}

fn mask(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.map_err(|_| "no number: give one as 0xff00000000000000".to_owned())
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    interior: Inside,
    tags: u64,
    pub(crate) mappings: bool,
}

impl Wanted {
    /// Which words count as pointers.
    pub(crate) fn policy(self) -> Policy {
        let interior = match self.interior {
            Inside::All => Interior::All,
            Inside::Start => Interior::Start,
            Inside::Known => Interior::Known,
        };
        Policy { interior, tags: self.tags }
    }
}

impl PolicyArgs {
    /// What they ask for.
    pub(crate) fn wanted(&self) -> Wanted {
        let interior = self.interior.unwrap_or_default();
        Wanted { interior, tags: self.tags.unwrap_or(registers::TAGS), mappings: !self.no_mappings }
    }

    /// Whether they ask for anything.
    fn is_given(&self) -> bool {
        self.interior.is_some() || self.tags.is_some() || self.no_mappings
    }
}
