//! Tests of the whole crate, from the bytes of a trace to the report.

mod bad_files;
mod common;
mod debug_files;
mod debuginfod;
mod following;
mod golden;
mod history;
mod hostile;
mod model;
mod programs;
mod pushed;
mod sample;
mod symbols;
mod totals;
