//! Sets: several hooks on one function, listeners and probes. One thread runs but where a test says otherwise.

mod at_once;
#[path = "../common/code.rs"]
mod code;
#[path = "../common/find.rs"]
mod find;
#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
mod isa;
mod listeners;
mod orders;
#[path = "../common/poke.rs"]
mod poke;
mod probes;
#[cfg(target_arch = "x86_64")]
mod reclaim;
#[path = "../common/samples.rs"]
mod samples;
mod unwinding;

use grapnel_hook::{Attachment, Batch, BatchId, Error, HookSet, Liveness};

type Function = extern "C" fn(u64) -> u64;

fn function(at: *const ()) -> Function {
    // SAFETY: the samples and their trampolines have this type.
    unsafe { std::mem::transmute(at) }
}

fn at(name: &str) -> *const () {
    samples::all().into_iter().find(|s| s.name == name).unwrap().at
}

/// Attaches what one request asks for.
fn attach<'a>(
    set: &'a mut HookSet,
    ask: impl FnOnce(&mut Batch<'a>) -> BatchId,
) -> Result<Attachment, Error> {
    let mut batch = set.begin();
    ask(&mut batch);
    // SAFETY: one thread calls the functions, the types agree, and the listeners are for these functions.
    unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0)
}

fn remove(set: &mut HookSet, attachment: Attachment) -> Result<(), Error> {
    // SAFETY: one thread calls the functions.
    unsafe { set.remove(attachment, Liveness::SingleThreaded) }
}

fn main() {
    orders::run();
    listeners::run();
    isa::run();
    unwinding::run();
    probes::run();
    #[cfg(target_arch = "x86_64")]
    reclaim::run();
    at_once::run();
    assert_eq!(code::writable_code(), Vec::<String>::new());
    println!("ok");
}
