//! A second pass over a trace, for what its events tell one by one.

use crate::Analysis;
use crate::live::{LiveBlocks, Totals, Watcher};
use grapnel_trace::Event;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::reader::Reader;
use std::io::{self, Read};

/// Events of the heap that are taken in together.
const BATCH: usize = 256;

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
pub(crate) fn replay<R: Read>(
    mut reader: Reader<R>,
    analysis: &Analysis,
    player: &mut impl Player,
) -> io::Result<LiveBlocks> {
    if analysis.sampling.is_some() {
        let message = "this format tells of single blocks, and the trace has a sample of them: choose another, such as pprof";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut live = LiveBlocks::new();
    let mut batch: Vec<HeapEvent> = Vec::with_capacity(BATCH);
    let mut left = analysis.events;
    // Whether the next event of a block is of another heap than the program's own.
    let mut is_others = false;
    while left > 0 && player.goes_on() {
        batch.clear();
        let most = BATCH.min(usize::try_from(left).unwrap_or(BATCH));
        let next = reader.next_batch(&mut batch, most);
        let own = match batch.split_first() {
            Some((_, rest)) if std::mem::take(&mut is_others) => rest,
            _ => &batch,
        };
        live.apply_all_watched(own, player);
        left -= batch.len() as u64;
        match next.map_err(io::Error::other)? {
            Some(event) if left > 0 => {
                left -= 1;
                live.apply_watched(&event, player);
                is_others |= matches!(event, Event::InHeap(_));
                if let Event::Time(ns) = event {
                    player.moment(ns, &live.totals());
                }
            }
            None if batch.len() == most => {}
            Some(_) | None => break,
        }
    }
    Ok(live)
}
