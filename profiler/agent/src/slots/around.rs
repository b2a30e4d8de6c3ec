//! The calls around the one that a thread is in: what `inside` is once that is over, however it ends.
//!
//! A `new_handler` runs in the middle of an operator's call, and what it calls may be an operator too, whose own handler
//! throws, or jumps away. The outer call then goes on, and what it calls is still its own.
//!
//! A call that returns brings back what its stub has kept for it. What an exception or a jump needs is kept here, newest first,
//! and not in the stubs' frames: these may be gone where somebody went from stack to stack.

use crate::tls::Tls;

/// A call begins, and `inside` is to be this. What it was.
#[inline]
pub(crate) fn enter(tls: &Tls, inside: usize) -> usize {
    let outer = tls.inside.replace(inside);
    let [newest, older] = &tls.around;
    older.set(newest.replace(outer));
    if outer == 0 {
        // What is left here of calls that ended unseen is nobody's.
        older.set(0);
    }
    outer
}

/// The call returns before which `inside` was this.
#[inline]
pub(crate) fn leave(tls: &Tls, outer: usize) {
    tls.inside.set(outer);
    if outer != 0 {
        newest(tls);
    }
}

/// The call ends that the thread is in, and doesn't return. That around it lies further up the stack: none that ended unseen.
pub(crate) fn left(tls: &Tls) {
    let (inside, outer) = (tls.inside.get(), newest(tls));
    tls.inside.set(if inside != 0 && outer >= inside { outer } else { 0 });
}

/// Takes the newest of those around.
fn newest(tls: &Tls) -> usize {
    let [newest, older] = &tls.around;
    newest.replace(older.replace(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls;

    /// A stack of calls, leaf last: the outer ones lie further up.
    #[test]
    fn a_call_that_is_left_leads_back_to_that_around_it() {
        let tls = tls::get();
        assert_eq!(enter(tls, 0x901), 0);
        assert_eq!(enter(tls, 0x801), 0x901);
        assert_eq!(enter(tls, 0x701), 0x801);
        left(tls);
        assert_eq!(tls.inside.get(), 0x801);
        // One that returns amid it.
        assert_eq!(enter(tls, 0x601), 0x801);
        leave(tls, 0x801);
        left(tls);
        assert_eq!(tls.inside.get(), 0x901);
        leave(tls, 0);
        assert_eq!(tls.inside.get(), 0);
        left(tls);
        assert_eq!(tls.inside.get(), 0);
    }

    #[test]
    fn one_that_ended_unseen_is_not_led_back_to() {
        let tls = tls::get();
        enter(tls, 0x301);
        // The first one's frame is gone: the second has taken its place.
        assert_eq!(enter(tls, 0x901), 0x301);
        left(tls);
        assert_eq!(tls.inside.get(), 0);
        // Of a family's function amid an operator's call, which is then still that.
        enter(tls, 0x804);
        enter(tls, 0x804);
        left(tls);
        assert_eq!(tls.inside.get(), 0x804);
        leave(tls, 0);
        // Beyond what is kept.
        for inside in [0x901, 0x801, 0x701, 0x601] {
            enter(tls, inside);
        }
        let seen = [(); 3].map(|()| {
            left(tls);
            tls.inside.get()
        });
        assert_eq!(seen, [0x701, 0x801, 0]);
    }
}
