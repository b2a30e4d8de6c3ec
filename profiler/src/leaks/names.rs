//! What roots are called: variables by their symbols, threads by the names that they have.

use grapnel_analysis::leaks::{Naming, Recorded};
use grapnel_analysis::symbols::Symbols;
use std::collections::HashMap;
use std::ops::Range;

/// Names of a process's roots.
#[derive(Debug)]
pub(crate) struct Names<'n, 'a> {
    pub(crate) recorded: &'n Recorded,
    pub(crate) symbols: Symbols<'a>,
    pub(crate) pid: u32,
    threads: HashMap<u32, Vec<u8>>,
}

impl<'n, 'a> Names<'n, 'a> {
    pub(crate) fn new(recorded: &'n Recorded, symbols: Symbols<'a>, pid: u32) -> Self {
        Self { recorded, symbols, pid, threads: HashMap::new() }
    }
}

impl Naming for Names<'_, '_> {
    fn variable(&mut self, module: u32, address: u64) -> Option<(Range<u64>, Vec<u8>)> {
        let module = self.recorded.modules.iter().find(|known| known.id == module)?;
        let (range, name) = self.symbols.variable(module, address)?;
        Some((range, name.into_bytes()))
    }

    fn thread(&mut self, thread: u32) -> Vec<u8> {
        let name = self.threads.entry(thread).or_insert_with(|| {
            let now = std::fs::read(format!("/proc/{}/task/{thread}/comm", self.pid)).unwrap_or_default();
            let now = now.strip_suffix(b"\n").unwrap_or(&now).to_vec();
            if now.is_empty() { self.recorded.threads.get(&thread).cloned().unwrap_or_default() } else { now }
        });
        name.clone()
    }
}
