//! Names for addresses in lines and files: the object, the address in it, the function that it exports.
//!
//! `dladdr` would wait for the dynamic linker's lock, which a thread may hold that waits for ours.

use crate::modules;
use crate::symbols::FileSymbols;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use grapnel_hook::module::Module;
use grapnel_hook::symbol;

/// Where an address lies.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// Of the object's file; empty if there is none.
    pub(crate) path: Vec<u8>,
    /// From where the object would be loaded at 0.
    pub(crate) relative: usize,
    /// Its name and how far into it.
    pub(crate) function: Option<(Vec<u8>, usize)>,
}

/// An object, and its symbols if it was asked for and they could be read.
type Object = (modules::Described, Option<Option<FileSymbols>>);

/// Objects, the symbols of those that were asked for, and all answers: whoever writes many stacks meets the same addresses
/// again.
pub(crate) struct Names {
    objects: Vec<Object>,
    /// By address, and whether the answer is a thorough one.
    places: BTreeMap<(usize, bool), Place>,
}

impl Names {
    /// Of the objects that are loaded now.
    pub(crate) fn new() -> Self {
        let objects = modules::described_all().into_iter().map(|object| (object, None)).collect();
        Self { objects, places: BTreeMap::new() }
    }

    /// With `thorough`, functions that are not exported are found in the symbol table of the object's file.
    pub(crate) fn place(&mut self, pc: usize, thorough: bool) -> &Place {
        let Self { objects, places } = self;
        places.entry((pc, thorough)).or_insert_with(|| Self::find(objects, pc, thorough))
    }

    fn find(objects: &mut [Object], pc: usize, thorough: bool) -> Place {
        let within = |object: &modules::Described| object.range.contains(&(pc as u64));
        let Some((object, symbols)) = objects.iter_mut().find(|(object, _)| within(object)) else {
            return Place { relative: pc, ..Place::default() };
        };
        let bias = object.bias as usize;
        let mut function = None;
        if thorough {
            let symbols = symbols.get_or_insert_with(|| crate::symbols::read(&object.path, b""));
            if let Some(symbols) = symbols {
                symbols.for_each(bias, &mut |name, range| {
                    if range.contains(&pc) {
                        function = Some((name.to_vec(), pc - range.start));
                    }
                });
            }
        }
        if function.is_none() {
            // SAFETY: the object was loaded when it was described; should it be unloaded right now, the program runs code
            // of an object that goes.
            let module = unsafe {
                Module::from_program_headers(
                    &object.path,
                    bias,
                    object.headers.as_ptr().cast(),
                    object.headers.len(),
                )
            };
            function =
                symbol::function_at(&module, pc).map(|(name, symbol)| (name.to_vec(), pc - symbol.addr));
        }
        Place { path: object.path.clone(), relative: pc.wrapping_sub(bias), function }
    }
}
