//! Generators and oracles for the relocator, and oracles for what reads traces, as a library: the fuzz targets, the corpus
//! runner and the ordinary tests are a few lines each.
//!
//! The oracle with the feature `unicorn` links the Unicorn emulator, which is under the GPL, version 2. Nothing that
//! Grapnel ships depends on this crate.

pub mod case;
pub mod corpus;
#[cfg(feature = "capstone")]
pub mod decoders;
pub mod generate;
pub mod jobs;
pub mod oracle;
pub mod survey;
pub mod tally;
pub mod target;
pub mod trace;
