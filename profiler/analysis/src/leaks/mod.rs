//! Leaks by reachability: which live blocks a process can still reach, through what, and which are lost.
//!
//! A block is **reachable** if a pointer to it lies in a root or in a reachable block. Roots are what a program uses without
//! asking an allocator: variables, stacks, registers, memory that it mapped. A block that isn't reachable is **lost**:
//! **directly** if no other lost block leads to it, **indirectly** if one does. Of lost blocks that lead to each other in a
//! circle, one counts as directly lost and holds the others. **Possibly lost** is what only pointers lead to that the
//! [`Policy`] doesn't count, and all that hangs on it.
//!
//! Any word that could be a pointer is taken for one: what is called lost is lost, as far as the process hides no pointers
//! (in files, in other processes, xored), while a number that looks like an address can keep a lost block hidden.
//!
//! - [`mod@recorded`]: what a trace says of the live blocks at its last event;
//! - [`blocks`]: from an address to the block that it lies in;
//! - [`mod@scan`]: from roots through blocks, by a [`Memory`] that may be another process's, with words of its own [`width`];
//! - [`paths`]: what holds each block, put together by stacks;
//! - [`found`]: what a trace's last scan says, as [`text`] and as [`json`].

pub mod blocks;
pub mod found;
pub mod json;
mod known;
mod lost;
pub mod paths;
pub mod recorded;
mod roots;
pub mod scan;
pub mod text;
pub mod width;
pub mod words;

pub use found::{Found, Kind, LeakSite};
pub use grapnel_trace::leaks::Interior;
pub use recorded::{Recorded, recorded};
pub use scan::{Memory, Naming, RootRange, Roots, scan};
pub use width::Width;

/// What counts as a pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Which pointers to the inside of a block count.
    pub interior: Interior,
    /// Bits that are taken out of a word before it is taken for a pointer: tags.
    pub tags: u64,
}
