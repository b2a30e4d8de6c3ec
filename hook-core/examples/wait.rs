//! Replaces a function of a library that is not loaded yet, and that comes and goes; and finds functions by address.

use std::{
    error::Error,
    ffi::{CStr, c_char, c_int, c_ulong},
    sync::atomic::{AtomicPtr, Ordering::*},
};

use grapnel_hook::{
    Liveness, module,
    symbol::Lookup,
    waiting::{Status, Waiting},
};

static ORIGINAL: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Turns "1H" into seconds.
type ParseTtl = unsafe extern "C" fn(*const c_char, *mut c_ulong) -> c_int;

unsafe extern "C" fn twice(text: *const c_char, seconds: *mut c_ulong) -> c_int {
    // SAFETY: it was stored before the first call could come here, and has this type.
    let original: ParseTtl = unsafe { std::mem::transmute(ORIGINAL.load(Acquire)) };
    // SAFETY: the caller's promise.
    unsafe {
        let error = original(text, seconds);
        *seconds *= 2;
        error
    }
}

/// Loads the library, calls its function, and unloads it.
fn seconds_of(text: &CStr) -> c_ulong {
    let mut seconds = 0;
    // SAFETY: the function has this type, and nothing of the library is used after it is unloaded.
    unsafe {
        let library = libc::dlopen(c"libresolv.so.2".as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null());
        let function = libc::dlsym(library, c"ns_parse_ttl".as_ptr());
        let function: ParseTtl = std::mem::transmute(function);
        assert_eq!(function(text.as_ptr(), &raw mut seconds), 0);
        libc::dlclose(library);
    }
    seconds
}

fn main() -> Result<(), Box<dyn Error>> {
    let waiting = Waiting::new();
    let mut hooks = waiting.lock()?;
    // SAFETY: the types agree, and one thread runs.
    let id = unsafe {
        hooks.replace(
            b"libresolv.so.2",
            b"ns_parse_ttl",
            twice as *const (),
            Some(&ORIGINAL),
            Liveness::SingleThreaded,
        )
    }?;
    assert_eq!(hooks.status(id)?, Status::Waiting);
    // While the hooks are held, other threads wait in dlopen; this one would not be seen.
    drop(hooks);
    for _ in 0..3 {
        assert_eq!(seconds_of(c"1H"), 7200);
        assert!(matches!(waiting.lock()?.status(id)?, Status::Unloaded { .. }));
    }
    // SAFETY: one thread runs.
    unsafe { waiting.lock()?.remove(id, Liveness::SingleThreaded) }?;
    assert_eq!(seconds_of(c"1H"), 3600);

    // Which function is it that an address lies in? This one isn't exported.
    let debug = module::r_debug_of_this_process().ok_or("the program is linked statically")?;
    // SAFETY: nothing is loaded or unloaded while the list is used.
    let modules = unsafe { module::loaded_modules(debug) };
    let address = seconds_of as *const () as usize;
    let program = modules.iter().find(|module| module.holds_code(address)).ok_or("no object has the code")?;
    let function = Lookup::new(program).function_at(address + 1).ok_or("it isn't known")?;
    assert_eq!(function.range.start, address);
    let name = function.name.unwrap_or_default();
    println!("{} has {} bytes", name.escape_ascii(), function.range.len());
    Ok(())
}
