//! Side-by-side runs against peers: the same work bare, under heaptrack and under grapnel, in turn, so that a
//! noisy machine disturbs all alike. And the relocator's steps beside iced-x86's `BlockEncoder`, and the hook
//! engine beside others.

pub mod analyse;
pub mod emulated;
pub mod hooks;
pub mod instructions;
pub mod machine;
pub mod measure;
pub mod peers;
pub mod relocate;
pub mod rounds;
pub mod sampled;
pub mod statistics;
pub mod table;
pub mod windows;
pub mod workloads;
