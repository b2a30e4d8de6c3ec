//! Roots that were found to hold something, each once.

use super::scan::{Naming, RootRange};
use grapnel_trace::leaks::{MAX_ROOTS, Root, RootKind};
use std::collections::HashMap;
use std::ops::Range;

/// Roots that are kept for what is put together.
const RESERVED: usize = 256;

/// The roots so far.
#[derive(Debug)]
pub(super) struct Interned {
    roots: Vec<Root>,
    by_place: HashMap<(RootKind, u32, u32, u64), u32>,
    /// The last variable that was looked up, and its root.
    last: Option<(Range<u64>, u32)>,
    /// Some were put together.
    pub(super) cut: bool,
}

impl Interned {
    pub(super) fn new() -> Self {
        Self { roots: Vec::new(), by_place: HashMap::new(), last: None, cut: false }
    }

    pub(super) fn into_roots(self) -> Vec<Root> {
        self.roots
    }

    /// The root that a word at `address` in a range belongs to, and how far from the root's start the word is.
    pub(super) fn at(&mut self, range: &RootRange, address: u64, naming: &mut impl Naming) -> (u32, u64) {
        if let Some((variable, root)) = &self.last
            && variable.contains(&address)
        {
            return (*root, address - variable.start);
        }
        let (kind, thread, module) = (range.kind, range.thread, range.module);
        if kind == RootKind::Global {
            if let Some((variable, name)) =
                naming.variable(module, address).filter(|(v, _)| v.contains(&address))
            {
                let offset = address - variable.start;
                let root = self.get(kind, thread, module, variable.start, || name);
                self.last = Some((variable, root));
                return (root, offset);
            }
            return (self.get(kind, thread, module, address, Vec::new), 0);
        }
        // Of these the whole is one root.
        let start = range.root.start;
        (self.get(kind, thread, module, start, || naming.thread(thread)), address.wrapping_sub(start))
    }

    /// A register.
    pub(super) fn register(&mut self, thread: u32, name: &str) -> u32 {
        // Its name stands for the place: by FNV-1a, which every byte counts in.
        let place = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |place, byte| {
            (place ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let root = self.get(RootKind::Register, thread, 0, place, || name.into());
        if let Some(root) = self.roots.get_mut(root as usize) {
            root.address = 0;
        }
        root
    }

    /// What is no memory.
    pub(super) fn nowhere(&mut self, kind: RootKind) -> u32 {
        self.get(kind, 0, 0, 0, Vec::new)
    }

    fn get(
        &mut self,
        kind: RootKind,
        thread: u32,
        module: u32,
        address: u64,
        name: impl FnOnce() -> Vec<u8>,
    ) -> u32 {
        let key = (kind, thread, module, address);
        if let Some(&known) = self.by_place.get(&key) {
            return known;
        }
        let room = MAX_ROOTS - self.roots.len();
        let (key, name) = match room {
            // As a last resort all of a kind are one.
            0..=16 => ((kind, 0, 0, 0), Vec::new()),
            17..=RESERVED => ((kind, thread, module, 0), Vec::new()),
            _ => (key, name()),
        };
        self.cut |= room <= RESERVED && kind.is_reachable();
        *self.by_place.entry(key).or_insert_with(|| {
            let (kind, thread, module, address) = key;
            self.roots.push(Root { kind, thread, module, address, name });
            self.roots.len() as u32 - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Names;
    impl Naming for Names {
        fn variable(&mut self, _: u32, address: u64) -> Option<(Range<u64>, Vec<u8>)> {
            (address < 0x2000).then(|| (0x1000..0x1100, b"table".to_vec()))
        }
        fn thread(&mut self, thread: u32) -> Vec<u8> {
            thread.to_string().into()
        }
    }

    #[test]
    fn a_variable_is_one_root_and_so_is_a_stack() {
        let range =
            |kind| RootRange { range: 0x1000..0x9000, root: 0x800..0x9000, kind, thread: 7, module: 1 };
        let mut roots = Interned::new();
        let globals = range(RootKind::Global);
        assert_eq!(roots.at(&globals, 0x1000, &mut Names), (0, 0));
        assert_eq!(roots.at(&globals, 0x1010, &mut Names), (0, 16));
        assert_eq!(roots.at(&globals, 0x1108, &mut Names), (1, 0), "beyond the variable");
        assert_eq!(roots.at(&globals, 0x3000, &mut Names), (2, 0));
        assert_eq!(roots.at(&globals, 0x1018, &mut Names), (0, 24));
        let stack = range(RootKind::Stack);
        assert_eq!(roots.at(&stack, 0x5000, &mut Names), (3, 0x4800));
        assert_eq!(roots.at(&stack, 0x6000, &mut Names), (3, 0x5800));
        assert_eq!((roots.register(7, "rax"), roots.register(8, "rax"), roots.register(7, "rax")), (4, 5, 4));
        // They end alike.
        let pointers = ["the stack pointer", "the thread pointer"];
        assert_eq!(pointers.map(|name| roots.register(7, name)), [6, 7]);
        let roots = roots.into_roots();
        assert_eq!(roots[0].name, b"table");
        assert_eq!(
            (roots[3].name.as_slice(), roots[4].name.as_slice(), roots[4].address),
            (&b"7"[..], &b"rax"[..], 0)
        );
    }

    #[test]
    fn too_many_roots_are_put_together() {
        let range =
            RootRange { range: 0..u64::MAX, root: 0..u64::MAX, kind: RootKind::Global, thread: 0, module: 0 };
        let mut roots = Interned::new();
        for at in 0..40_000u64 {
            let range = RootRange { module: (at / 20) as u32, ..range.clone() };
            let (root, _) = roots.at(&range, 0x10_0000 + 8 * at, &mut Names);
            assert!((root as usize) < MAX_ROOTS);
        }
        let lost = roots.nowhere(RootKind::Lost);
        assert!(roots.cut);
        let roots = roots.into_roots();
        assert!(roots.len() <= MAX_ROOTS && roots[lost as usize].kind == RootKind::Lost);
    }
}
