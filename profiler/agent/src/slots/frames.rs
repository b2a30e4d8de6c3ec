//! Which slot the call is of that `inside` names.
//!
//! It is not read from the stub's frame: that may be gone, with its stack, where the function that was called went from stack to stack, or to
//! another thread, before it returned. A thread keeps it of the last few calls, by what `inside` was, and each stub's frame keeps it of
//! the call around its own, which comes back when that returns.

use crate::tls::Tls;

/// In the place of a slot.
pub(super) const NONE: usize = u16::MAX as usize;

/// The call that `inside` names is of this slot.
#[inline]
pub(super) fn note(tls: &Tls, inside: usize, slot: usize) {
    let known = tls.frames.iter().position(|frame| frame.get() == inside);
    let at = known.unwrap_or_else(|| {
        let oldest = usize::from(tls.oldest.get());
        tls.oldest.set(((oldest + 1) % tls.frames.len()) as u16);
        oldest
    });
    if let (Some(frame), Some(of)) = (tls.frames.get(at), tls.slots.get(at)) {
        frame.set(inside);
        of.set(slot as u16);
    }
}

/// The slot of the call that `inside` names; [`NONE`] where it isn't known.
#[inline]
pub(super) fn slot(tls: &Tls, inside: usize) -> usize {
    let known = tls.frames.iter().zip(&tls.slots).find(|(frame, _)| frame.get() == inside);
    known.map_or(NONE, |(_, slot)| slot.get().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{self, FRAMES};

    #[test]
    fn the_last_few_are_known() {
        let tls = tls::get();
        let inside = |n: usize| 0x7000 + 64 * n;
        (0..2 * FRAMES).for_each(|n| note(tls, inside(n), n));
        assert_eq!(slot(tls, inside(FRAMES - 1)), NONE);
        assert!((FRAMES..2 * FRAMES).all(|n| slot(tls, inside(n)) == n));
        // The same place again, of another function.
        note(tls, inside(FRAMES), 1000);
        assert_eq!((slot(tls, inside(FRAMES)), slot(tls, inside(FRAMES + 1))), (1000, FRAMES + 1));
        assert_eq!(slot(tls, 1), NONE);
    }
}
