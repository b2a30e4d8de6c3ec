//! Walks of real stacks of this process, compared with libgcc's unwinder and with each other.

mod common;
mod control;
mod foreign;
mod plain;
mod random;
