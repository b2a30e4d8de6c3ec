//! What hooked functions are called.

use alloc::{collections::BTreeMap, format, vec::Vec};

use grapnel_relocator::CodeAddr;

use crate::{memory::maps::Maps, module::Module, native, symbol};

/// The names of the functions around some addresses.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<CodeAddr, Vec<u8>>);

impl Names {
    /// Looks for exported functions, then, with the feature `files`, for others.
    pub(crate) fn of(targets: impl Iterator<Item = CodeAddr>) -> Self {
        let mut names = Self(targets.map(|target| (target, Vec::new())).collect());
        let Ok(maps) = Maps::read() else { return names };
        // By their object; no other object lies in between.
        let targets: Vec<CodeAddr> = names.0.keys().copied().collect();
        let mut rest = &targets[..];
        while let Some((first, _)) = rest.split_first() {
            // SAFETY: the object's code is about to be patched, and so it stays.
            let module = unsafe { Module::around(&maps, first.0 as usize) };
            let within = |target: &CodeAddr| module.as_ref().is_some_and(|m| m.holds_code(target.0 as usize));
            let (here, others) =
                rest.split_at(rest.iter().position(|t| !within(t)).unwrap_or(rest.len()).max(1));
            rest = others;
            if let Some(module) = module {
                names.take_exported(&module);
                names.take_others(&module.with_path_at(first.0 as usize), here);
            }
        }
        names
    }

    /// Takes the names of functions that aren't exported from the object's files.
    #[cfg(feature = "files")]
    fn take_others(&mut self, module: &Module, targets: &[CodeAddr]) {
        let lookup = symbol::Lookup::new(module);
        for target in targets {
            if let Some(name) = self.0.get_mut(target).filter(|name| name.is_empty()) {
                // Symbols of T32 code have bit 0 of their addresses set. One of A32 code holds this address as well.
                let found =
                    lookup.function_at(native::pointer_to(grapnel_relocator::Isa::T32, *target).0 as usize);
                *name = found.and_then(|function| function.name).unwrap_or_default();
            }
        }
    }

    #[cfg(not(feature = "files"))]
    fn take_others(&mut self, _: &Module, _: &[CodeAddr]) {}

    /// Takes the names that an object exports, in one pass.
    fn take_exported(&mut self, module: &Module) {
        symbol::for_each(module, &mut |name, symbol| {
            if !matches!(symbol.kind, symbol::SymbolKind::Function | symbol::SymbolKind::Indirect) {
                return;
            }
            let range = symbol.range();
            let (_, start) = native::code_at(CodeAddr(range.start as u64));
            for (_, best) in self.0.range_mut(start..start.add(range.len() as u64)) {
                if best.is_empty() || rank(name) < rank(best) {
                    *best = name.into();
                }
            }
        });
    }

    /// The name, or the address where there is none.
    pub(crate) fn get(&self, target: CodeAddr) -> Vec<u8> {
        match self.0.get(&target) {
            Some(name) if !name.is_empty() => name.clone(),
            _ => format!("{target}").into_bytes(),
        }
    }
}

/// Of several names the one that programmers use: `malloc`, not `__libc_malloc`.
fn rank(name: &[u8]) -> (usize, usize) {
    (name.iter().take_while(|&&byte| byte == b'_').count(), name.len())
}
