//! What threads share without a lock, in all interleavings and with all values that the memory model allows: return points,
//! the table of the trap handler, the words of a chain, and who is in a guarded listener. These are the crate's own sources,
//! with loom's atomics in place of the processor's, and with a stack and a few system calls that are made of them.
//!
//! loom runs the stores of one thread in their order, and lets no load see a store that comes later.

#![cfg(target_arch = "x86_64")]

extern crate alloc;

mod arena;
mod atomic;
mod listen;
mod live;
mod native;
mod set;
mod sys;

/// Every interleaving with at most so many switches away from a thread that could go on: enough for all faults of two
/// threads that were tried, and the models end in seconds.
fn model(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}
