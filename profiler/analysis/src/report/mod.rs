//! An analysis in the forms that people and programs read.

pub mod cost;
mod heaps;
pub mod json;
mod mappings;
mod mismatches;
mod names;
pub mod stack;
pub mod text;
pub mod words;
