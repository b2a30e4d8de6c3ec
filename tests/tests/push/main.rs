//! What `--push` sends, read by the formats' own readers, and what becomes of it where the engine fails.
//!
//! The engines themselves are none of Debian's, nor of a registry's: a server stands for each, which demands what the
//! engine's sources demand.

mod common;
mod taken;
mod troubles;
