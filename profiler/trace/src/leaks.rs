//! What a scan of a process's memory found: which live blocks are lost, and what holds the others.
//!
//! A scan begins at *roots* (variables, stacks, registers) and follows pointers from block to block. What it found is kept
//! as *paths*: a forest, whose trees begin at roots. A node stands for all blocks of one stack that are held in the same
//! way: by the same root, through blocks of the same stacks. So a list of a million blocks is one node, and the figures of
//! all nodes add up to those of all live blocks.
//!
//! Two roots are none in memory: [`RootKind::Lost`] has below it what nothing leads to, and [`RootKind::Possible`] what only
//! pointers lead to that the policy doesn't count.

use crate::varint::{get, put};
use alloc::vec::Vec;

/// The most roots that are told apart, of all kinds together.
pub const MAX_ROOTS: usize = 1 << 14;
/// The most nodes of paths: with the roots, at most what a block of the file may hold.
pub const MAX_PATHS: usize = 130_000;
/// A root's name is cut to this many bytes.
pub const MAX_NAME: usize = 128;

/// Which pointers to the inside of a block count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Interior {
    /// All.
    #[default]
    All = 0,
    /// None: a pointer must lead to a block's first byte.
    Start = 1,
    /// Those of known forms: behind the length of an array or of a string, to a base class.
    Known = 2,
}

impl Interior {
    /// The policy with this number.
    pub fn from_u8(n: u8) -> Option<Self> {
        [Self::All, Self::Start, Self::Known].get(usize::from(n)).copied()
    }
}

/// What a root is. In the order in which a block that several lead to is given to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum RootKind {
    /// A variable of a module.
    Global = 0,
    /// A thread's own variables, and what libc keeps of the thread.
    ThreadLocal = 1,
    /// Memory that the program mapped itself.
    Mapping = 2,
    /// A thread's stack.
    Stack = 3,
    /// A thread's registers.
    Register = 4,
    /// What the dynamic linker has besides its variables.
    Loader = 5,
    /// Memory from before the recording, of which it isn't known what blocks are in it.
    Before = 6,
    /// Only pointers that the policy doesn't count lead there.
    Possible = 7,
    /// Nothing leads there.
    Lost = 8,
}

impl RootKind {
    /// All of them, each at its number.
    pub const ALL: [Self; 9] = [
        Self::Global,
        Self::ThreadLocal,
        Self::Mapping,
        Self::Stack,
        Self::Register,
        Self::Loader,
        Self::Before,
        Self::Possible,
        Self::Lost,
    ];

    /// Whether what it leads to is reachable.
    pub fn is_reachable(self) -> bool {
        !matches!(self, Self::Possible | Self::Lost)
    }
}

/// Where paths begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// What it is.
    pub kind: RootKind,
    /// The thread whose it is, as the kernel numbers it; 0 for none.
    pub thread: u32,
    /// The module whose it is; 0 for none.
    pub module: u32,
    /// Where it lies. 0 where several were put together, and for what is no memory.
    pub address: u64,
    /// The variable's, the thread's or the register's name. May be empty. Any bytes.
    pub name: Vec<u8>,
}

/// What a path goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// From the root of this number.
    Root(u32),
    /// From the node of this number, always a lower one than its own.
    Path(u32),
}

/// Blocks of one stack that are held in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// What holds them.
    pub holder: Holder,
    /// The stack's node: its place, from 1, among the nodes of the trace that differ, in the order in which they first come.
    pub stack: u32,
    /// How many of them it holds itself.
    pub blocks: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// How many are held by others of this node, or by blocks further on: the rest of a list.
    pub inner_blocks: u64,
    /// Bytes of those.
    pub inner_bytes: u64,
    /// Where in what holds it the pointer to the first of them lies: bytes from its start, or from the variable's.
    pub offset: u64,
}

/// Reasons why a scan may have missed something: bits of [`LeakScan::doubts`].
pub mod doubts {
    /// Events were lost before: blocks that nobody knows of were not looked through.
    pub const LOST_EVENTS: u32 = 1;
    /// A thread was stopped in the middle of an allocation.
    pub const BUSY: u32 = 2;
    /// There is memory from before the recording; all of it counts as roots.
    pub const BEFORE: u32 = 4;
    /// Some memory could not be read.
    pub const UNREADABLE: u32 = 8;
    /// There were more roots or paths than are told apart: some were put together.
    pub const CUT: u32 = 16;
}

/// What a scan found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeakScan {
    /// When it was, in nanoseconds since the recording began.
    pub time_ns: u64,
    /// Whether the process was about to end.
    pub at_exit: bool,
    /// Which pointers to the inside of a block counted.
    pub interior: Interior,
    /// The bits that were taken out of words before they were taken for pointers.
    pub tags: u64,
    /// Bytes of roots that were looked through.
    pub root_bytes: u64,
    /// Nanoseconds that the process stood still for the scan; at exit, until it was done.
    pub stopped_ns: u64,
    /// See [`doubts`].
    pub doubts: u32,
    /// Where paths begin.
    pub roots: Vec<Root>,
    /// All nodes; each stands behind the one that it goes on from.
    pub paths: Vec<Path>,
}

const AT_EXIT: u64 = 1;
const OF_PATH: u64 = 1;

impl LeakScan {
    /// The content of a block. Roots and paths beyond the limits are left out.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let head = [
            self.time_ns,
            u64::from(self.at_exit) * AT_EXIT,
            self.interior as u64,
            self.tags,
            self.root_bytes,
            self.stopped_ns,
            u64::from(self.doubts),
            self.roots.len().min(MAX_ROOTS) as u64,
            self.paths.len().min(MAX_PATHS) as u64,
        ];
        head.into_iter().for_each(|number| put(&mut out, number));
        for root in self.roots.iter().take(MAX_ROOTS) {
            let name = &root.name[..root.name.len().min(MAX_NAME)];
            out.push(root.kind as u8);
            for number in [u64::from(root.thread), u64::from(root.module), root.address, name.len() as u64] {
                put(&mut out, number);
            }
            out.extend_from_slice(name);
        }
        for (at, path) in self.paths.iter().take(MAX_PATHS).enumerate() {
            let (flag, holder) = match path.holder {
                Holder::Root(root) => (0, u64::from(root)),
                Holder::Path(before) => (OF_PATH, (at as u64).wrapping_sub(u64::from(before))),
            };
            put(&mut out, holder << 1 | flag);
            let Path { blocks, bytes, inner_blocks, inner_bytes, offset, .. } = *path;
            for number in [u64::from(path.stack), blocks, bytes, inner_blocks, inner_bytes, offset] {
                put(&mut out, number);
            }
        }
        out
    }

    /// The inverse; `None` for bytes that [`LeakScan::encode`] can't have made.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut at = 0;
        let mut number = || get(bytes, &mut at);
        let mut scan = Self { time_ns: number()?, at_exit: number()? & AT_EXIT != 0, ..Self::default() };
        scan.interior = Interior::from_u8(u8::try_from(number()?).ok()?)?;
        (scan.tags, scan.root_bytes, scan.stopped_ns) = (number()?, number()?, number()?);
        scan.doubts = u32::try_from(number()?).ok()?;
        let (roots, paths) = (number()?, number()?);
        if roots > MAX_ROOTS as u64 || paths > MAX_PATHS as u64 {
            return None;
        }
        for _ in 0..roots {
            let kind = *RootKind::ALL.get(usize::from(*bytes.get(at)?))?;
            at += 1;
            let mut number = || get(bytes, &mut at);
            let thread = u32::try_from(number()?).ok()?;
            let module = u32::try_from(number()?).ok()?;
            let address = number()?;
            let len = usize::try_from(number()?).ok().filter(|&len| len <= MAX_NAME)?;
            let name = bytes.get(at..)?.get(..len)?.to_vec();
            at += len;
            scan.roots.push(Root { kind, thread, module, address, name });
        }
        for index in 0..paths {
            let mut number = || get(bytes, &mut at);
            let first = number()?;
            let holder = match first & OF_PATH {
                0 => Holder::Root(u32::try_from(first >> 1).ok().filter(|&root| u64::from(root) < roots)?),
                _ => Holder::Path(index.checked_sub(first >> 1).filter(|&before| before < index)? as u32),
            };
            scan.paths.push(Path {
                holder,
                stack: u32::try_from(number()?).ok()?,
                blocks: number()?,
                bytes: number()?,
                inner_blocks: number()?,
                inner_bytes: number()?,
                offset: number()?,
            });
        }
        (at == bytes.len()).then_some(scan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn scan() -> LeakScan {
        let (holder, offset) = (Holder::Root(0), 16);
        let figures =
            Path { holder, stack: 0, blocks: 1, bytes: 300, inner_blocks: 0, inner_bytes: 0, offset };
        let path = |holder, stack| Path { holder, stack, ..figures };
        let root =
            |kind, name: &[u8]| Root { kind, thread: 7, module: 3, address: 0x7f00, name: name.to_vec() };
        LeakScan {
            time_ns: 5,
            at_exit: true,
            interior: Interior::Known,
            tags: 0xff << 56,
            root_bytes: 9,
            stopped_ns: 11,
            doubts: doubts::BUSY,
            roots: vec![root(RootKind::Global, b"table"), root(RootKind::Lost, b"\xff")],
            paths: vec![
                path(Holder::Root(0), 4),
                Path { inner_blocks: 7, blocks: u64::MAX, ..path(Holder::Path(0), 5) },
                path(Holder::Root(1), 0),
                path(Holder::Path(2), u32::MAX),
            ],
        }
    }

    #[test]
    fn a_scan_comes_back_and_a_cut_one_does_not() {
        let bytes = scan().encode();
        assert_eq!(LeakScan::decode(&bytes), Some(scan()));
        assert!((0..bytes.len()).all(|end| LeakScan::decode(&bytes[..end]).is_none()));
        assert_eq!(LeakScan::decode(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn holders_lie_before_what_they_hold() {
        for holder in [Holder::Root(2), Holder::Path(0), Holder::Path(1), Holder::Path(u32::MAX)] {
            let mut scan = scan();
            scan.paths[0].holder = holder;
            assert_eq!(LeakScan::decode(&scan.encode()), None, "{holder:?}");
        }
    }

    #[test]
    fn the_largest_scan_fits_into_a_block() {
        let root = Root { thread: u32::MAX, module: u32::MAX, address: u64::MAX, ..scan().roots[0].clone() };
        let path = Path { holder: Holder::Root(MAX_ROOTS as u32 - 1), stack: u32::MAX, ..scan().paths[1] };
        // More bytes than fit into memory there are not.
        let (bytes, inner_bytes, offset) = (1 << 48, 1 << 48, 1 << 48);
        let path = Path { blocks: 1 << 40, inner_blocks: 1 << 40, bytes, inner_bytes, offset, ..path };
        let largest = LeakScan {
            roots: vec![Root { name: vec![b'x'; 4 * MAX_NAME], ..root }; MAX_ROOTS + 1],
            paths: vec![path; MAX_PATHS + 1],
            ..scan()
        };
        let bytes = largest.encode();
        assert!(bytes.len() <= crate::block::MAX_BLOCK, "{}", bytes.len());
        assert_eq!(LeakScan::decode(&bytes).map(|scan| scan.paths.len()), Some(MAX_PATHS));
    }
}
