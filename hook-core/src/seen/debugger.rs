//! The interface by which debuggers learn of code that is made at run time (GDB's manual, "JIT Compilation Interface";
//! LLDB has it too): a list of objects in memory, and a function in which a debugger puts a breakpoint.
//!
//! The debugger looks both up by their names in each object's symbol table. Other libraries may bring their own, so here
//! both are local symbols (`native`), which don't meet those when a program is linked. Who strips a library of its symbols
//! takes them away.
//!
//! # Safety
//! The list is changed by one thread of the process at a time. A debugger reads it while the process is stopped.

use alloc::boxed::Box;
use core::ptr;

use crate::{lock::Lock, native, sys::Errno};

/// `struct jit_code_entry`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Entry {
    next: *mut Entry,
    previous: *mut Entry,
    object: *const u8,
    len: u64,
}

/// `struct jit_descriptor`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut Entry,
    first: *mut Entry,
}

const REGISTER: u32 = 1;

static LOCK: Lock = Lock::new();

/// Tells debuggers of an object, which stays for good.
pub(crate) fn register(object: &'static [u8]) -> Result<(), Errno> {
    let _held = LOCK.hold()?;
    let descriptor = native::debug_descriptor();
    // SAFETY: this thread holds the lock of the list.
    unsafe {
        let first = (*descriptor).first;
        let entry = Entry {
            next: first,
            previous: ptr::null_mut(),
            object: object.as_ptr(),
            len: object.len() as u64,
        };
        let entry = Box::into_raw(Box::new(entry));
        if let Some(first) = first.as_mut() {
            first.previous = entry;
        }
        *descriptor = Descriptor { version: 1, action: REGISTER, relevant: entry, first: entry };
    }
    native::debug_register();
    Ok(())
}
