//! Functions that are gone with their object.

use core::ops::Range;

use super::{HookSet, chain::State};
use crate::live;

impl HookSet {
    /// Forgets what is attached to functions in these addresses, whose memory was unmapped: all of it counts as removed,
    /// and nothing is written. The same code loaded there again can be hooked again with what was made for it, and
    /// [`Self::reclaim`] frees that.
    pub fn forget(&mut self, ranges: &[Range<u64>]) {
        self.settle();
        for range in ranges {
            live::forget(range);
            for (target, site) in &mut self.sites {
                if !range.contains(&target.0) {
                    continue;
                }
                for link in &mut site.chain.links {
                    link.state = State::Out;
                    self.places.remove(&link.id);
                }
                site.hook.0.removed = true;
                for edit in site.edits() {
                    self.standing.remove(&edit.at);
                }
                site.publish(&[]);
                site.chain.retire();
            }
        }
    }
}
