//! What each site did over time, in one pass and bounded memory.
//!
//! A recording is cut into a few hundred *buckets*, runs of changes of the live set. A site has a *cell* in each bucket in
//! which it changed. From cells come, exactly, what every site held at a bucket's edge, what it allocated between two edges,
//! and what it held at the highest moment between two edges.
//!
//! Nobody knows in advance how long a recording is. So buckets begin narrow, and when there are too many of them, or of
//! cells, neighbours are put together and new ones become twice as wide. A bucket is closed by time or by the number of its
//! changes, whichever comes first: a burst is seen in detail, and a wait takes few buckets.

mod bucket;
mod recorder;

pub use bucket::{Bucket, Cell, Cells, SizeClass, Sizes};
pub use recorder::{Recorder, Window};

use crate::analyse::{Analysis, analyse_with};
use grapnel_trace::reader::Reader;
use std::io::Read;

/// What the sites did over time.
#[derive(Debug, Default)]
pub struct History {
    /// All that came before the window, if one was asked for that doesn't begin at the beginning.
    pub prelude: Option<Bucket>,
    /// The buckets, in their order.
    pub buckets: Vec<Bucket>,
    /// The stack of each site that cells name, by its number. Several sites may have the same one.
    pub stacks: Vec<u32>,
    /// The most bytes that each site ever held within the window, at the site's number.
    pub most_bytes: Vec<u64>,
    /// For each node, from 0 for the empty stack, the first node that is the same.
    pub(crate) canonical: Vec<u32>,
    /// Whether all figures are in 65,536ths, since they are estimates.
    pub in_units: bool,
}

impl History {
    /// The prelude, where there is one, and the buckets.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = &Bucket> {
        self.prelude.iter().chain(&self.buckets)
    }

    /// A figure of a cell or bucket as a whole number of what it counts.
    pub fn whole(&self, figure: u64) -> u64 {
        if self.in_units { crate::weight::whole(figure) } else { figure }
    }
}

/// As [`crate::analyse()`], and keeps what each site did over time, within a window.
pub fn analyse_over_time<R: Read + Send>(reader: Reader<R>, window: Window) -> (Analysis, History) {
    let (analysis, canonical, recorder) = analyse_with(reader, Recorder::new(window));
    let mut history = recorder.finish(analysis.totals.duration_ns);
    for stack in &mut history.stacks {
        *stack = canonical[*stack as usize];
    }
    history.canonical = canonical;
    history.in_units = analysis.sampling.is_some();
    (analysis, history)
}
