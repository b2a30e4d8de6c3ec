//! Tests of the whole crate, from the bytes of a trace to the report.

mod common;
mod golden;
mod hostile;
mod model;
mod sample;
mod symbols;
mod totals;
