//! Exports: each is read back by the tool that it is for, and its figures are those of the report.

mod blocks;
mod common;
mod names;
mod sites;
