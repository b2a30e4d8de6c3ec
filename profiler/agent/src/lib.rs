//! The part of grapnel that lives in the target.
//!
//! It is loaded by `LD_PRELOAD`, hooks libc's allocation functions before any other constructor runs, and from
//! then on writes each event into the calling thread's ring in shared memory, where the command drains it. Built with
//! `--cfg grapnel_attached`, it is put into a process that runs instead: without a loader, a libc or a thread-local
//! block of its own.
//!
//! What it never does: use the target's heap, take a lock that the target's code can hold, touch errno, keep
//! a descriptor, print, install a signal handler, or unwind into the target. System calls are made raw; its
//! own memory comes from `heap`; thread-local state is initial-exec and has no destructor. Only `debug`,
//! where its user asks for it, prints and handles signals.
//!
//! - `start`: the constructor; environment, session, hooks
//! - `attached`: the start in a process that runs already; `ledger`: what is changed there, so that it can be undone
//! - `install`: which functions are hooked, and how the hooks go in, in both
//! - `bound`: the hooks in tables of addresses, where no code is to be changed
//! - `entry`: the stubs that the hooks lead to, and the way out of a fault of our own
//! - `hooks`: what each hooked function records, and in which order
//! - `slots`: functions of which there may be several: their thunks, their stub, which of them is which
//! - `operators`: `operator new` and `operator delete`; `shadow`, `cells`: how each of their blocks was asked for
//! - `native`: what depends on the instruction set; `jumps`: leaving a hooked function by `longjmp`
//! - `families`: allocators besides libc's; `symbols`: functions that aren't exported
//! - `sampled`: the hooks when only some allocations are recorded; `sampling`: which
//! - `sandbox`: filters for system calls that the program is under
//! - `heaps`: heaps besides the program's own; `reported`: those that it reports itself
//! - `mappings`: what the program maps by itself
//! - `hot`: what each event reads of the process
//! - `record`: the hot path: context, stack, sequence number, ring
//! - `context`: what a thread owns while it records; claiming, reuse; `abandoned`: what threads leave behind
//! - `meter`: what recording costs, measured on some calls
//! - `life`: whether we record at all; fork; `forking`: forks wait for what a child needs whole; `forked`: what comes of a child
//! - `modules`: which objects are loaded; rules for their code; `listing`: who says so
//! - `debug`: Android's malloc_debug, instead of a recording or beside it
//! - `ending`: the end of the process waits for a look for leaks
//! - `exec`: going along into the next program; `follow`: into which
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod abandoned;
#[cfg(grapnel_attached)]
mod attached;
#[cfg(not(grapnel_attached))]
mod bound;
mod cells;
mod context;
#[cfg(not(grapnel_attached))]
mod debug;
mod displaced;
#[cfg(not(grapnel_attached))]
mod ending;
mod entry;
#[cfg(not(grapnel_attached))]
mod exec;
mod families;
mod few;
mod filter;
#[cfg(not(grapnel_attached))]
mod follow;
mod forked;
#[cfg(not(grapnel_attached))]
mod forking;
mod guests;
mod heap;
mod heaps;
mod hooks;
mod hot;
mod install;
#[cfg(grapnel_attached)]
mod instead;
#[cfg(not(grapnel_attached))]
mod jumps;
mod known;
mod ledger;
mod lent;
mod life;
mod listing;
mod lock;
mod mappings;
mod meter;
mod modules;
mod native;
mod operators;
mod own_stack;
mod record;
mod reported;
mod sampled;
mod sampling;
mod sandbox;
mod session;
mod shadow;
mod slots;
mod span;
mod stack;
#[cfg(not(grapnel_attached))]
mod start;
#[cfg(not(grapnel_attached))]
mod stat;
mod symbols;
mod sys;
mod throwing;
mod tls;

#[cfg(grapnel_cdylib)]
mod cdylib;
