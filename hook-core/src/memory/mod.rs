//! The process's own memory, seen from outside: what is mapped, and reading and writing it without a fault.

mod exchange;
pub mod maps;
pub(crate) mod pages;
pub(crate) mod place;
pub(crate) mod remap;
mod rights;
pub(crate) mod runs;
mod trial;
pub(crate) mod view;
