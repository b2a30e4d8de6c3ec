//! What hooked functions are called.

use alloc::{collections::BTreeMap, format, vec::Vec};

use grapnel_relocator::CodeAddr;

use crate::{memory::maps::Maps, module::Module, symbol};

/// The names of the functions around some addresses.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<CodeAddr, Vec<u8>>);

impl Names {
    /// Looks for exported functions, then, with the feature `files`, for others.
    pub(crate) fn of(targets: impl Iterator<Item = CodeAddr>) -> Self {
        let mut names = Self(targets.map(|target| (target, Vec::new())).collect());
        let Ok(maps) = Maps::read() else { return names };
        // By their object; no other object lies in between.
        let mut last: Option<Module> = None;
        let targets: Vec<CodeAddr> = names.0.keys().copied().collect();
        for target in targets {
            let at = target.0 as usize;
            if last.as_ref().is_none_or(|module| !module.holds_code(at)) {
                // SAFETY: the object's code is about to be patched, and so it stays.
                last = unsafe { Module::around(&maps, at) };
                if let Some(module) = &last {
                    names.take_exported(module);
                }
            }
            #[cfg(feature = "files")]
            if let (Some(module), Some(name)) = (&last, names.0.get_mut(&target))
                && name.is_empty()
            {
                let found = symbol::Lookup::new(module).function_at(at);
                *name = found.and_then(|function| function.name).unwrap_or_default();
            }
        }
        names
    }

    /// Takes the names that an object exports, in one pass.
    fn take_exported(&mut self, module: &Module) {
        symbol::for_each(module, &mut |name, symbol| {
            if !matches!(symbol.kind, symbol::SymbolKind::Function | symbol::SymbolKind::Indirect) {
                return;
            }
            let range = symbol.range();
            for (_, best) in self.0.range_mut(CodeAddr(range.start as u64)..CodeAddr(range.end as u64)) {
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
