//! What is shown: made by the thread that reads the trace, drawn by another.

use clap::ValueEnum;
use grapnel_analysis::Totals;
use grapnel_analysis::modules::Modules;
use grapnel_analysis::stacks::Node;
use std::sync::Arc;
use std::time::Duration;

/// By what sites are sorted, most first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Order {
    /// What their live bytes have grown by.
    #[default]
    Growth,
    /// Their live bytes.
    Live,
    /// Their live blocks.
    Blocks,
    /// The bytes that they allocate in a second.
    Bytes,
    /// The blocks that they allocate in a second.
    Calls,
}

impl Order {
    /// In the order of the columns.
    pub(super) const ALL: [Self; 5] = [Self::Growth, Self::Live, Self::Blocks, Self::Bytes, Self::Calls];

    pub(super) fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) order: Order,
    /// The site whose stack is looked at.
    pub(super) stack: Option<u32>,
}

/// The figures of a site, or of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) live_bytes: u64,
    pub(super) live_blocks: u64,
    /// What the live bytes have grown by since the moment that is compared with.
    pub(super) growth: i64,
    /// Allocated in a second.
    pub(super) bytes_per_s: f64,
    pub(super) calls_per_s: f64,
}

/// A frame, as far as it is known without a look into files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// The node's id.
    pub(super) id: u32,
    pub(super) node: Node,
}

/// A site.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    /// The stack's node; 0 where no stack is known.
    pub(super) stack: u32,
    pub(super) figures: Figures,
    /// Its innermost frames.
    pub(super) frames: Vec<Frame>,
}

/// A frame of the stack that is looked at.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Level {
    pub(super) frame: Frame,
    /// Whether it was found by a guess.
    pub(super) guess: bool,
    /// What all stacks hold that go through this frame by way of the same callers.
    pub(super) through: u64,
    /// What that has grown by.
    pub(super) growth: i64,
}

/// The stack that is looked at.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Drill {
    pub(super) row: Row,
    /// From the innermost frame on.
    pub(super) levels: Vec<Level>,
    /// Frames that are not among them.
    pub(super) more: usize,
}

/// How the trace stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// So much of it was read, in percent: what is shown is the past.
    #[default]
    Unread,
    Reading(u8),
    /// It goes on.
    Recording,
    /// Nothing has come for so many seconds.
    Quiet(u64),
    /// There will be no more, for this reason.
    Over(String),
}

/// All there is to show.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) state: State,
    pub(super) pid: u32,
    /// The process's arguments, as they can stand in a terminal.
    pub(super) command: String,
    /// How long it has been recorded.
    pub(super) time_ns: u64,
    pub(super) totals: Totals,
    /// Whether the figures are estimates.
    pub(super) sampled: bool,
    pub(super) all: Figures,
    /// The live bytes from the recording's beginning until now, at equal distances.
    pub(super) trend: Vec<u64>,
    /// What growth is counted from, and when that was.
    pub(super) base: (String, u64),
    /// In the order that was asked for.
    pub(super) order: Order,
    /// No more than [`MOST_ROWS`].
    pub(super) rows: Vec<Row>,
    /// How many sites there are.
    pub(super) sites: usize,
    pub(super) drill: Option<Drill>,
    pub(super) modules: Arc<Modules>,
    /// The number of the next mark that is made from here.
    pub(super) next_mark: u32,
    /// How long it took to make this.
    pub(super) cost: Duration,
}

/// Rows that are made; nobody scrolls further.
pub(super) const MOST_ROWS: usize = 500;
/// Frames of a row that may be named.
pub(super) const ROW_FRAMES: usize = 6;
/// Frames of the stack that is looked at.
pub(super) const MOST_LEVELS: usize = 1000;
