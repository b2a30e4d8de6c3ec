//! An analysis in the forms that people and programs read.

pub mod cost;
mod folded;
mod heaps;
pub mod json;
mod mappings;
mod mismatches;
pub mod names;
pub mod stack;
pub mod text;
pub mod words;
