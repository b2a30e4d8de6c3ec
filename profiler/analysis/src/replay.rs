//! A second pass over a trace, for what its events tell one by one.

use crate::Analysis;
use crate::ahead::{Ahead, Stretch};
use crate::analyse::Ending;
use crate::live::{LiveBlocks, Totals, Watcher};
use grapnel_trace::Event;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::reader::Reader;
use std::io::{self, Read};
use std::ops::ControlFlow;

/// A [`Watcher`] that is told of the time too.
pub(crate) trait Player: Watcher {
    /// From here on it is so many nanoseconds since the recording began, and this is the live set.
    fn moment(&mut self, ns: u64, totals: &Totals);
    /// Whether to go on: what was written may have failed.
    fn goes_on(&self) -> bool {
        true
    }
}

/// Tells `player` what the events did that `analysis` is of, and gives what is live after them. The trace may have grown since;
/// what came later is left out.
///
/// # Errors
/// What reading gives, where the first pass found nothing wrong; of a sample, [`io::ErrorKind::InvalidInput`].
pub(crate) fn replay<R: Read + Send>(
    reader: Reader<R>,
    analysis: &Analysis,
    player: &mut impl Player,
) -> io::Result<LiveBlocks> {
    if analysis.sampling.is_some() {
        let message = "this format tells of single blocks, and the trace has a sample of them: choose another, such as pprof";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut replay = Replay { live: LiveBlocks::new(), is_others: false, player };
    let done = Ahead::new(reader, analysis.events).each(|stretch| {
        replay.take(stretch);
        if replay.player.goes_on() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    match done.ending {
        Some(Ending::Damaged(error)) => Err(io::Error::other(error)),
        _ => Ok(replay.live),
    }
}

struct Replay<'p, P> {
    live: LiveBlocks,
    /// Whether the next event of a block is of another heap than the program's own.
    is_others: bool,
    player: &'p mut P,
}

impl<P: Player> Replay<'_, P> {
    fn take(&mut self, stretch: &Stretch) {
        let mut from = 0;
        for other in &stretch.others {
            self.take_heap(&stretch.heap[from..other.at]);
            from = other.at;
            self.live.apply_watched(&other.event, self.player);
            self.is_others |= matches!(other.event, Event::InHeap(_));
            if let Event::Time(ns) = other.event {
                self.player.moment(ns, &self.live.totals());
            }
        }
        self.take_heap(&stretch.heap[from..]);
    }

    fn take_heap(&mut self, events: &[HeapEvent]) {
        let own = match events.split_first() {
            Some((_, rest)) if std::mem::take(&mut self.is_others) => rest,
            _ => events,
        };
        self.live.apply_all_watched(own, self.player);
    }
}
