//! An analysis in the forms that people and programs read.

pub mod json;
mod stack;
pub mod text;
pub mod words;
