//! Side-by-side runs against peers: the same work bare, under heaptrack and under grapnel, in turn, so that a
//! noisy machine disturbs all alike.

pub mod machine;
pub mod measure;
pub mod table;
pub mod workloads;
