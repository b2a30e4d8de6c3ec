//! Grapnel as something that hooks one function in one way, or many in another.

use std::{error::Error, ffi::c_void, hint::black_box};

use grapnel_hook::{
    Arena, Attachment, Hook, HookSet, Listener, Liveness, Options, Probe, Transaction,
    listen::{Entry, Exit, Hit},
};

use super::functions::{PROBED, SIZE, empty, many, replacement};

/// Why an engine didn't hook something.
pub type Refused = Box<dyn Error>;

/// A way to hook one function for good.
pub type Way = (&'static str, fn(*const ()) -> Result<(), Refused>);

/// A way to hook many functions.
pub type Install = (&'static str, fn(usize) -> Result<Box<dyn Installed>, Refused>);

/// Many hooks that are in.
pub trait Installed {
    /// Takes them out.
    ///
    /// # Errors
    ///
    /// If one can't be.
    fn remove(self: Box<Self>) -> Result<(), Refused>;
}

/// Grapnel's ways.
pub const GRAPNEL: [Way; 10] = [
    ("replace", |target| {
        let mut transaction = Transaction::new();
        transaction.replace_sized(target, SIZE, replacement as *const ());
        // SAFETY: one thread runs, and both take nothing and return an integer.
        unsafe { transaction.commit(Liveness::SingleThreaded) }.remove(0)?;
        Ok(())
    }),
    ("replace, in a set", |target| {
        attach(|batch, options| {
            batch.replace_with(target, replacement as *const (), options);
        })
    }),
    ("listener to entry", |target| listen(target, listener().on_enter(enter))),
    ("listener to entry and return", |target| listen(target, listener().on_enter(enter).on_leave(leave))),
    ("the same, looking at vectors", |target| {
        listen(target, listener().on_enter(enter_looking).on_leave(leave_looking))
    }),
    ("the same, guarded", |target| listen(target, listener().on_enter(enter).on_leave(leave).guarded())),
    ("the same, with vectors", |target| {
        listen(target, listener().on_enter(enter).on_leave(leave).with_vectors())
    }),
    ("probe", |target| probe(target, Probe::new(hit, std::ptr::null_mut()))),
    ("probe, looking at vectors", |target| probe(target, Probe::new(hit_looking, std::ptr::null_mut()))),
    ("probe, general registers only", |target| {
        // SAFETY: `hit` does nothing.
        probe(target, unsafe { Probe::new(hit, std::ptr::null_mut()).general_only() })
    }),
];

/// Grapnel's ways to hook many.
pub const GRAPNEL_MANY: [Install; 4] = [
    ("replace, a transaction", |count| transaction(count, Liveness::SingleThreaded)),
    ("the same, while others run", |count| transaction(count, Liveness::Live)),
    ("replace, a set", |count| {
        set(count, |batch, target, options| {
            batch.replace_with(target, replacement as *const (), options);
        })
    }),
    ("listener to entry and return, a set", |count| {
        set(count, |batch, target, options| {
            batch.listen_with(target, listener().on_enter(enter).on_leave(leave), options);
        })
    }),
];

unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
    black_box(call);
}

unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
    black_box(call);
}

unsafe extern "C" fn hit(hit: &mut Hit, _: *mut c_void) {
    black_box(hit);
}

// The same for which vector registers are saved, as for all that isn't seen to leave them alone.
unsafe extern "C" fn enter_looking(call: &mut Entry, _: *mut c_void) {
    black_box(call.vector(0).is_some());
}

unsafe extern "C" fn leave_looking(call: &mut Exit, _: *mut c_void) {
    black_box(call.vector(0).is_some());
}

unsafe extern "C" fn hit_looking(hit: &mut Hit, _: *mut c_void) {
    black_box(hit.vector(0).is_some());
}

fn listener() -> Listener {
    Listener::new(std::ptr::null_mut())
}

fn options() -> Options {
    Options { size: Some(SIZE), ..Options::default() }
}

fn attach(request: impl FnOnce(&mut grapnel_hook::Batch<'_>, Options)) -> Result<(), Refused> {
    let mut set = HookSet::new();
    let mut batch = set.begin();
    request(&mut batch, options());
    // SAFETY: one thread runs, and the functions take nothing.
    unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0)?;
    // For good.
    std::mem::forget(set);
    Ok(())
}

fn listen(target: *const (), listener: Listener) -> Result<(), Refused> {
    attach(|batch, options| {
        batch.listen_with(target, listener, options);
    })
}

fn probe(target: *const (), probe: Probe) -> Result<(), Refused> {
    attach(|batch, options| {
        let function = target as u64..target as u64 + SIZE as u64;
        batch.probe_with(target.wrapping_byte_add(PROBED), Some(function), probe, options);
    })
}

struct Hooks {
    hooks: Vec<Hook>,
    liveness: Liveness,
    _arena: Arena,
}

fn transaction(count: usize, liveness: Liveness) -> Result<Box<dyn Installed>, Refused> {
    let mut arena = Arena::new();
    let mut transaction = Transaction::with_arena(&mut arena);
    for number in 0..count {
        transaction.replace_sized(many(number), SIZE, replacement as *const ());
    }
    if liveness == Liveness::Live {
        transaction = transaction.live();
    }
    // SAFETY: both take nothing and return an integer; no thread has SIGTRAP blocked.
    let hooks = unsafe { transaction.commit(liveness) }.into_iter().collect::<Result<_, _>>()?;
    Ok(Box::new(Hooks { hooks, liveness, _arena: arena }))
}

impl Installed for Hooks {
    fn remove(mut self: Box<Self>) -> Result<(), Refused> {
        // SAFETY: as for `transaction`.
        for result in unsafe { Hook::remove_all(&mut self.hooks, self.liveness) } {
            result?;
        }
        Ok(())
    }
}

struct Set {
    set: HookSet,
    attached: Vec<Attachment>,
}

fn set(
    count: usize,
    request: impl Fn(&mut grapnel_hook::Batch<'_>, *const (), Options),
) -> Result<Box<dyn Installed>, Refused> {
    let mut set = HookSet::new();
    let mut batch = set.begin();
    for number in 0..count {
        request(&mut batch, many(number), options());
    }
    // SAFETY: one thread runs, and the functions take nothing.
    let attached = unsafe { batch.commit(Liveness::SingleThreaded) }.into_iter().collect::<Result<_, _>>()?;
    Ok(Box::new(Set { set, attached }))
}

impl Installed for Set {
    fn remove(mut self: Box<Self>) -> Result<(), Refused> {
        let mut batch = self.set.begin();
        for attachment in &self.attached {
            batch.remove(*attachment);
        }
        // SAFETY: one thread runs.
        for result in unsafe { batch.commit(Liveness::SingleThreaded) } {
            result?;
        }
        Ok(())
    }
}

/// The functions for calls, and what hooks them: a plain one, one behind a jump, then one for each of the ways.
pub fn calls(ways: &[Way]) -> Vec<(String, *const (), Result<(), Refused>)> {
    let plain = [("plain call", empty(0)), ("one more jump", super::functions::jump())];
    let plain = plain.map(|(name, function)| (name.to_owned(), function, Ok(())));
    let hooked = ways.iter().enumerate().map(|(number, (name, way))| {
        let target = empty(number + 1);
        ((*name).to_owned(), target, way(target))
    });
    plain.into_iter().chain(hooked).collect()
}
