//! Functions of loaded objects, by their names and by their addresses.
//!
//! # Safety
//! No object is loaded or unloaded during a call, which each says; so the list of objects and what it leads to stay.

use std::{
    ffi::{CStr, c_char, c_void},
    ptr,
};

use engine::{
    module::{self, Module},
    symbol::{self, Lookup, LookupError, Symbol, SymbolKind},
};

use crate::error::grapnel_error;

/// # Safety
/// No object is loaded or unloaded while the list is used.
pub(crate) unsafe fn modules() -> Result<Vec<Module>, *mut grapnel_error> {
    let unknown = || {
        grapnel_error::raise(
            "the dynamic linker's list of objects can't be found",
            "is the program linked statically?",
            0,
        )
    };
    let debug = module::r_debug_of_this_process().ok_or_else(unknown)?;
    // SAFETY: the dynamic linker's own structure; the rest is the caller's promise.
    Ok(unsafe { module::loaded_modules(debug) })
}

fn raise(error: &LookupError) -> *mut grapnel_error {
    grapnel_error::raise(&error.to_string(), error.remedy(), 0)
}

/// The first object that exports it, else the first whose files have it. With an object's name the reason why not.
fn find(modules: &[Module], object: Option<&CStr>, name: &CStr) -> Result<Symbol, *mut grapnel_error> {
    let called = |module: &&Module| {
        let object = object.map(CStr::to_bytes);
        object.is_none_or(|name| module.file_name().starts_with(name) || module.is_called(name))
    };
    let candidates = || modules.iter().filter(called);
    let function = |symbol: &Symbol| symbol.kind != SymbolKind::Object;
    let exported = |module| symbol::find(module, name.to_bytes()).filter(function);
    if let Some(found) = candidates().find_map(exported) {
        return Ok(found);
    }
    let mut first = None;
    for module in candidates() {
        match Lookup::new(module).find(name.to_bytes()) {
            Ok(found) => return Ok(found),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(match (object, first) {
        (Some(_), Some(error)) => raise(&error),
        (Some(object), None) => grapnel_error::raise(
            &format!("no object called {} is loaded", object.to_string_lossy()),
            "check the name; functions of objects that are loaded later can be waited for",
            0,
        ),
        (None, _) => grapnel_error::raise(
            &format!("{} isn't defined by any object", name.to_string_lossy()),
            "check the name; what isn't exported needs its object's debug symbols",
            0,
        ),
    })
}

/// Finds a function in a loaded object.
///
/// `object` is how the object's file name begins ("libc.so"), its soname or the end of its path, or NULL for the first
/// object that defines the name. `name` may ask for a version ("memcpy@GLIBC_2.2.5"). A function that isn't exported is
/// looked for in the symbol tables of the object's file, of its debug file and in its .gnu_debugdata, if these files
/// belong to what is loaded. An indirect function (IFUNC) is resolved to what is really called, and `size` is
/// the length of that, or 0 if it isn't known. `size` may be NULL.
///
/// # Errors
/// If no such object is loaded, or none defines the name, or `name` or `address` is NULL; `address` and `size` are as they were.
///
/// # Safety
/// `object` is NULL or a string, `name` is a string, `address` may be written, and `size` may or is NULL. Any thread may
/// call this, while no object is loaded or unloaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_find(
    object: *const c_char,
    name: *const c_char,
    address: *mut *mut c_void,
    size: *mut usize,
) -> *mut grapnel_error {
    for (is_null, what) in
        [(name.is_null(), "the name"), (address.is_null(), "where the address is to be stored")]
    {
        if is_null {
            return grapnel_error::null(what).give();
        }
    }
    // SAFETY: null or a string (the caller's promise).
    let object = (!object.is_null()).then(|| unsafe { CStr::from_ptr(object) });
    // SAFETY: a string (the caller's promise).
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: the caller's promise.
    let found = unsafe { modules() }.and_then(|modules| {
        let symbol = find(&modules, object, name)?;
        // SAFETY: the object is loaded.
        let function = unsafe { symbol.resolve() };
        let len = match symbol.kind {
            SymbolKind::Indirect if !size.is_null() => len_of(&modules, function as usize),
            _ => symbol.size,
        };
        Ok((function, len))
    });
    match found {
        // SAFETY: `address` and `size` are as promised.
        Ok((function, len)) => unsafe {
            address.write(function.cast_mut().cast());
            if !size.is_null() {
                size.write(len);
            }
            ptr::null_mut()
        },
        Err(error) => error,
    }
}

/// The length of the function that begins at an address; 0 if it isn't known.
fn len_of(modules: &[Module], start: usize) -> usize {
    let module = modules.iter().find(|module| module.holds_code(start));
    let function = module.and_then(|module| Lookup::new(module).function_at(start));
    function.filter(|function| function.range.start == start).map_or(0, |function| function.range.len())
}

/// Finds the function around an address: its name, cut to `room` bytes with the zero at its end, or "" if no symbol table
/// has one; where it begins, and how long it is. Each may be NULL.
///
/// # Errors
/// If no function is known there; the out pointers are as they were.
///
/// # Safety
/// `name` is NULL or `room` bytes may be written there; `start` and `size` are NULL or may be written. Any thread may
/// call this, while no object is loaded or unloaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_find_at(
    address: *const c_void,
    name: *mut c_char,
    room: usize,
    start: *mut *mut c_void,
    size: *mut usize,
) -> *mut grapnel_error {
    let at = address as usize;
    // SAFETY: the caller's promise.
    let modules = match unsafe { modules() } {
        Ok(modules) => modules,
        Err(error) => return error,
    };
    let module = modules.iter().find(|module| module.holds_code(at));
    let Some(function) = module.and_then(|module| Lookup::new(module).function_at(at)) else {
        return grapnel_error::raise(
            &format!("no function is known at {at:#x}"),
            "check that it is an address of a loaded object's code",
            at as u64,
        );
    };
    if !name.is_null() && room > 0 {
        let text = function.name.unwrap_or_default();
        let len = text.len().min(room - 1);
        // SAFETY: `room` bytes may be written there (the caller's promise), which need not hold anything yet, and the text is
        // another's.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), len) };
        // SAFETY: as above; the text is shorter than `room`.
        unsafe { name.add(len).write(0) };
    }
    // SAFETY: null or valid for writes (the caller's promise).
    unsafe {
        if !start.is_null() {
            start.write(function.range.start as *mut c_void);
        }
        if !size.is_null() {
            size.write(function.range.len());
        }
    }
    ptr::null_mut()
}
