//! Reads a trace on any host and says where the memory went.
//!
//! The modules are the stages of the pipeline:
//! - [`live`]: events to the live set and the totals; the definitions of every figure are there;
//! - [`sites`]: the same changes, added up for each stack, with each site's share of the peak;
//! - [`weight`]: estimates, and their errors, where only some blocks were recorded;
//! - [`heaps`]: heaps besides the program's own;
//! - [`mappings`]: what the program mapped by itself;
//! - [`marks`]: moments that were marked;
//! - [`overhead`]: what the recording cost the program;
//! - [`mismatches`]: blocks given back otherwise than they were got;
//! - [`mod@analyse`]: one pass over a trace in bounded memory, giving an [`Analysis`];
//! - [`following`]: the same pass over a trace that still grows;
//! - [`history`]: what each site did over time, kept by the same pass on request;
//! - [`symbols`]: addresses to functions, files, lines and inlined calls;
//! - [`report`]: an analysis as text or as JSON;
//! - [`page`]: an analysis and its history as a page of HTML;
//! - [`export`]: an analysis as a file that other tools open;
//! - [`leaks`]: which live blocks a process can still reach, and through what;
//! - [`diff`]: two analyses side by side;
//! - [`query`]: figures of groups of blocks, with filters, by the same pass;
//! - [`gates`]: conditions that an analysis is to meet, and [`suppressions`] of leaks;
//! - [`import`]: other profilers' files as traces.
//!
//! ```no_run
//! # fn main() -> Result<(), grapnel_trace::Error> {
//! let file = std::fs::File::open("app.grapnel")?;
//! let analysis = grapnel_analysis::analyse(grapnel_trace::reader::Reader::new(file)?);
//! println!("{} bytes at the peak", analysis.totals.peak_bytes);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod ahead;
pub mod analyse;
mod blocks;
pub mod diff;
pub mod export;
pub mod following;
pub mod gates;
mod hash;
pub mod heaps;
pub mod history;
mod ids;
pub mod import;
pub mod leaks;
pub mod live;
pub mod mappings;
pub mod marks;
mod merge;
pub mod mismatches;
pub mod modules;
mod numbering;
pub mod overhead;
pub mod page;
mod pages;
mod peak;
pub mod query;
mod replay;
pub mod report;
pub mod sites;
pub mod stacks;
pub mod suppressions;
pub mod symbols;
mod table;
pub mod weight;

pub use analyse::{Analysis, Ending, analyse, analyse_and_open};
pub use live::{LiveTotals, RunningTotals, Totals};
