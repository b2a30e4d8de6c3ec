//! The unwinders of the process, as the interface that compilers at run time use for their code finds them.
//!
//! Every loaded object that exports `__register_frame` has one: libgcc's, or LLVM's libunwind. They differ: libgcc takes a
//! whole section, LLVM's a single entry, and is known by another function that it exports.
//!
//! libgcc sorts a section when it is first searched, for which it allocates. That may be in a signal handler which has
//! interrupted `malloc`, so each section is searched once as soon as it is registered. It allocates while it holds its lock, so
//! no listener is told of that: one on `malloc` that takes a backtrace would wait for its own thread.
//!
//! # Safety
//! The functions are called through addresses that were found by name. Sections are never freed while they are
//! registered.

use alloc::vec::Vec;

use super::eh_frame;
use crate::{listen::Silence, module::Module, symbol};

type Register = unsafe extern "C" fn(*const u8);
type FindEntry = unsafe extern "C" fn(*const u8, *mut [usize; 3]) -> *const u8;

/// An unwinder that takes entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unwinder {
    register: Register,
    /// libgcc's search. `None` if it is LLVM's.
    find: Option<FindEntry>,
}

impl Unwinder {
    /// Those of the loaded objects.
    ///
    /// # Safety
    /// The objects are relocated, and stay loaded while an unwinder of theirs is used.
    pub(crate) unsafe fn all(modules: &[Module]) -> Vec<Self> {
        let of = |module: &Module| {
            let register = symbol::find(module, b"__register_frame")?.pointer();
            let find = match symbol::find(module, b"__unw_add_dynamic_fde") {
                Some(_) => None,
                None => Some(symbol::find(module, b"_Unwind_Find_FDE")?.pointer()),
            };
            // SAFETY: functions of these names have these types (libgcc's unwind-dw2-fde.h, LLVM's libunwind_ext.h).
            Some(unsafe {
                Self {
                    register: core::mem::transmute::<*const (), Register>(register),
                    find: find.map(|find| core::mem::transmute::<*const (), FindEntry>(find)),
                }
            })
        };
        modules.iter().filter_map(of).collect()
    }

    /// Makes a section known. `inside` is an address that it describes.
    pub(crate) fn register(&self, section: &'static [u8], inside: usize) {
        let _silence = Silence::begin();
        match self.find {
            Some(find) => {
                let mut bases = [0; 3];
                // SAFETY: a section that ends with a zero, and three words for what is not wanted.
                unsafe {
                    (self.register)(section.as_ptr());
                    find(inside as *const u8, &raw mut bases);
                }
            }
            None => {
                for entry in eh_frame::entries(section) {
                    // SAFETY: an entry, with the common one that it refers to.
                    unsafe { (self.register)(section.as_ptr().add(entry)) };
                }
            }
        }
    }
}
