//! Walks of one context, as those ask for them who make them.

use crate::Error;
use crate::backtrace::Backtrace;
use crate::gather::Gatherer;
use crate::memo::MemoEnd;
use crate::resolve::Resolver;
use crate::start::Start;
use crate::tree::{Interner, NodeId, Sink, StackTree};
use core::ops::Range;

/// How much a [`Walker`] may see and hold.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The most frames that a stack keeps; those nearest to the leaf are kept. Clamped to 1..=65536.
    ///
    /// A walker takes 184 bytes of memory per frame of this limit, and 32 kB for the leaves of recent walks; pages that no
    /// stack was deep enough for are never touched after a zeroing allocation.
    pub max_frames: usize,
    /// How deep a stack may be for its last walk to be kept. Behind the first walk that meets `max_frames` there is memory for
    /// four times as many frames, 200 bytes for each, and so on. Clamped to `max_frames`..=65536.
    pub kept_frames: usize,
    /// The binary logarithm of the number of call sites whose rules are cached, 20 bytes each. Clamped to 6..=20.
    pub cache_bits: u32,
    /// The binary logarithm of the number of leaves whose nearest frames are kept, 128 bytes each. At most 11; 0 for none.
    pub chain_bits: u32,
    /// The binary logarithm of the most slots of the [`StackTree`], 16 bytes each. Clamped to 10..=28.
    pub tree_bits: u32,
    /// Whether a walk that goes on from the last one tells the sink all nodes that the last one had not, without looking them up:
    /// the sink finds out which of them it knows.
    pub tells: bool,
    /// The binary logarithm of the words of recent walks that are kept, 16 bytes each. Clamped to 8..=20; 0 for none.
    pub recent_bits: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_frames: 1024,
            kept_frames: 1 << 16,
            cache_bits: 13,
            chain_bits: 11,
            tree_bits: 15,
            tells: false,
            recent_bits: 14,
        }
    }
}

/// How the last walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the outermost frame, as its unwind information says.
    Root,
    /// At the depth limit. The stack begins with a [`TRUNCATED`](crate::FrameFlags::TRUNCATED) node.
    Depth,
    /// Where no caller was found: the stack is incomplete, and begins with a [`NO_CALLER`](crate::FrameFlags::NO_CALLER) node.
    Open,
}

impl From<MemoEnd> for End {
    fn from(end: MemoEnd) -> Self {
        match end {
            MemoEnd::Root => End::Root,
            MemoEnd::Depth => End::Depth,
            MemoEnd::Open => End::Open,
        }
    }
}

/// The unwinder of one context: a thread, or whatever runs on one at a time.
///
/// [`walk`](Self::walk) neither locks nor makes a system call on its hot path, and allocates only when the tree has
/// to grow, or room for a deeper stack than any before.
#[repr(C)]
#[derive(Debug)]
pub struct Walker {
    tree: StackTree,
    walk: Gatherer,
}

impl Walker {
    /// A walker. Allocates all that it will need but the tree.
    pub fn new(config: Config) -> Result<Self, Error> {
        let walk = Gatherer::new(&config)?;
        Ok(Walker { walk, tree: StackTree::new(config.tree_bits.clamp(10, 28)) })
    }

    /// Walks from these registers to the root, reusing a recent walk, or the last one as far as it is proved to hold.
    #[inline(always)]
    pub fn walk(&mut self, start: &impl Start, resolver: &mut impl Resolver, sink: &mut impl Sink) -> NodeId {
        if let Some(node) = self.walk.recent_walk(start) {
            return node;
        }
        let tree = &mut Interner::new(&mut self.tree, sink);
        #[cfg(target_arch = "x86_64")]
        if let Some(node) = self.walk.again(start, resolver, tree) {
            return node;
        }
        self.walk.memoised(start, resolver, tree)
    }

    /// Asks the processor for what [`walk`](Self::walk) from these registers will read first, for it to come while something
    /// else goes on.
    #[inline(always)]
    pub fn expect(&self, start: &impl Start) {
        self.walk.expect(start);
    }

    /// Walks every frame. The answer is that of [`walk`](Self::walk); a difference is a bug, unless
    /// the tree was emptied in between or walks [tell](Config::tells) nodes anew.
    ///
    /// Neither uses nor changes the last walk. Rules come from the cache.
    pub fn walk_unmemoised(
        &mut self,
        start: &impl Start,
        resolver: &mut impl Resolver,
        sink: &mut impl Sink,
    ) -> NodeId {
        let tree = &mut Interner::new(&mut self.tree, sink);
        self.walk.unmemoised(start, resolver, tree)
    }

    /// Makes a full step for every frame: neither the last walk nor any fast rule is used.
    ///
    /// For checks. About a microsecond a frame.
    pub fn walk_by_cfi(
        &mut self,
        start: &impl Start,
        resolver: &mut impl Resolver,
        sink: &mut impl Sink,
    ) -> NodeId {
        let tree = &mut Interner::new(&mut self.tree, sink);
        self.walk.by_cfi(start.registers(), resolver, tree)
    }

    /// Asks the process's own unwinder for every frame: the stack from the caller of whoever calls this to the root.
    /// A signal's trampoline is not marked as one, and on 32-bit Arm the outermost frame is not shown.
    ///
    /// For those who choose it: its locks are taken, and it may allocate.
    pub fn walk_by_backtrace(
        &mut self,
        start: &impl Start,
        backtrace: &Backtrace,
        resolver: &mut impl Resolver,
        sink: &mut impl Sink,
    ) -> NodeId {
        let tree = &mut Interner::new(&mut self.tree, sink);
        self.walk.by_backtrace(start.pc(), backtrace, resolver, tree)
    }

    /// How the last walk ended.
    pub fn last_end(&self) -> End {
        self.walk.last_end()
    }

    /// The tree of all stacks seen since nodes were last numbered from 1.
    pub fn tree(&self) -> &StackTree {
        &self.tree
    }

    /// To be called when modules were added: forgets rules and the last walk, keeps the tree.
    pub fn flush(&mut self) {
        self.walk.forget_rules();
    }

    /// To be called when modules were removed, since a pc may soon mean something else: forgets all, the tree too.
    ///
    /// Ids count from 1 again.
    pub fn reset(&mut self) {
        self.walk.forget_rules();
        self.renumber();
    }

    /// Numbers nodes from 1 again. What is known of code stays.
    pub fn renumber(&mut self) {
        self.walk.forget_nodes();
        self.tree.reset();
    }

    /// To be called when the context goes to another thread, or when a stack it ran on is unmapped: forgets what is
    /// readable, and the last walk.
    pub fn forget_stacks(&mut self) {
        self.walk.forget_stacks();
    }

    /// These addresses are of the stack that the thread began on, which nobody else gives back or protects while it runs; empty where that isn't
    /// known. What walks that have to guess find there is then read without asking the kernel each time.
    pub fn own_stack(&mut self, addresses: Range<u64>) {
        self.walk.own_stack(addresses);
    }
}
