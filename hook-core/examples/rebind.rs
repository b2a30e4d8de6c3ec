//! Binds the calls of a function of libc to another, in all loaded objects, without a change of code.

use std::sync::atomic::{AtomicPtr, Ordering::*};

use grapnel_hook::{
    module,
    rebind::{NotDefined, Rebinding},
};

static ORIGINAL: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

type Getppid = unsafe extern "C" fn() -> libc::pid_t;

extern "C" fn negative() -> libc::pid_t {
    // SAFETY: it was stored before the first call could come here, and has this type.
    -unsafe { std::mem::transmute::<*mut (), Getppid>(ORIGINAL.load(Acquire))() }
}

fn main() -> Result<(), NotDefined> {
    // SAFETY: no preconditions.
    let getppid = || unsafe { libc::getppid() };
    let parent = getppid();

    let debug = module::r_debug_of_this_process().expect("the program is linked dynamically");
    // SAFETY: nothing is loaded or unloaded while the list is used.
    let modules = unsafe { module::loaded_modules(debug) };
    // SAFETY: the objects are relocated, and the types agree.
    let mut rebinding = unsafe { Rebinding::find(&modules, b"getppid", negative as *const ()) }?;
    ORIGINAL.store(rebinding.original().cast_mut(), Release);
    // SAFETY: as above.
    let report = unsafe { rebinding.update(&modules) };
    assert!(report.written > 0 && report.foreign.is_empty() && report.failed.is_empty());
    assert_eq!(getppid(), -parent);

    // SAFETY: as above.
    unsafe { rebinding.undo(&modules) };
    assert_eq!(getppid(), parent);
    println!("{} words were changed, and back", report.written);
    Ok(())
}
