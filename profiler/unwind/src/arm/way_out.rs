//! How code goes on from an address until it returns: what it takes off the stack on the way is how its frame is laid out.
//!
//! Calls are taken to leave sp as it was. Both ways of a branch may be gone, since one may end in a call that never returns,
//! behind which any other code or data lies.

use super::code::Code;
use super::effect::{Effect, Instruction};
use super::layout::Layout;
use super::registers::{LR, PC, R7, R11, SP};
use super::rule::RuleKind;

/// So many instructions are looked at.
const INSTRUCTIONS: usize = 2000;
/// So many branches are remembered whose other way is still to be gone.
const PENDING: usize = 16;
/// So many targets of branches are remembered, none of which is gone to twice.
const TARGETS: usize = 48;

/// Where a way has come to, before anything is taken off the frame.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    /// Which register the others are told by.
    base: RuleKind,
    /// sp, from the base. `None` where the code alone doesn't say.
    sp: Option<i32>,
    /// What r7 and r11 are now, from what each was at first.
    r7: i32,
    r11: i32,
}

/// The layout of the frame whose code goes on at `from`. That of code which was stopped there by a signal may have its
/// return address in lr.
pub(super) fn layout(code: &Code, from: u64, is_return_address: bool) -> Option<Layout> {
    let first = Place { at: from, base: RuleKind::Sp, sp: Some(0), r7: 0, r11: 0 };
    let mut search = Search {
        code,
        left: INSTRUCTIONS,
        pending: [first; PENDING],
        waiting: 1,
        targets: [0; TARGETS],
        seen: 0,
    };
    while let Some(number) = search.waiting.checked_sub(1) {
        search.waiting = number;
        let place = *search.pending.get(number)?;
        if let Some(mut layout) = search.go(place, is_return_address) {
            // What will be stored below sp is in its register still.
            if layout.kind == RuleKind::Sp {
                layout.saved.iter_mut().for_each(|saved| *saved = saved.filter(|place| *place >= 0));
            }
            return Some(layout);
        }
    }
    None
}

struct Search<'a> {
    code: &'a Code,
    left: usize,
    pending: [Place; PENDING],
    waiting: usize,
    targets: [u64; TARGETS],
    seen: usize,
}

impl Search<'_> {
    /// Follows one way to its end. `None` where that is no return.
    fn go(&mut self, mut place: Place, is_return_address: bool) -> Option<Layout> {
        // What was taken off the frame; then there is no way back into it.
        let mut taken: Option<Layout> = None;
        // Where lr was last loaded from: what the function returns to, if it returns by it, or any value.
        let mut link = None;
        // Whether lr has the return address still, if it wasn't stored.
        let mut link_is_callers = !is_return_address;
        let mut conditional_for = 0u32;
        if is_return_address && self.code.is_constant(place.at) {
            return None;
        }
        loop {
            self.left = self.left.checked_sub(1)?;
            let Instruction { effect, len, conditional } = self.code.instruction(place.at)?;
            let conditional = conditional || conditional_for > 0;
            conditional_for = conditional_for.saturating_sub(1);
            let has_link =
                |taken: &Option<Layout>| taken.as_ref().is_some_and(|layout| layout.pc().is_some());
            match effect {
                Effect::Other => {}
                Effect::If(count) => conditional_for = count,
                Effect::Call if has_link(&taken) => return None,
                Effect::Call if self.code.is_constant(place.at.wrapping_add(len)) => return None,
                Effect::Call => (link, link_is_callers) = (None, false),
                Effect::Pop { mask, size } => {
                    let mut layout = taken.unwrap_or(Layout::new(place.base));
                    layout.take(mask, place.sp?)?;
                    let sp = place.sp?.checked_add(size)?;
                    place.sp = Some(sp);
                    if mask & 1 << PC != 0 {
                        return Some(Layout { cfa: sp, ..layout });
                    }
                    if mask != 0 {
                        taken = Some(layout);
                    }
                }
                Effect::LoadLink(offset) => link = Some(place.sp?.checked_add(offset)?),
                // Another function, or one that was only just entered.
                Effect::Push { mask, .. } if mask & 1 << LR != 0 && is_return_address => return None,
                Effect::StoreLink(_) => {}
                Effect::Push { size, .. } => place.sp = place.sp.and_then(|sp| sp.checked_sub(size)),
                Effect::Move { to, from, add } => place.move_to(to, from, add, taken.is_some())?,
                Effect::LosesSp => place.sp = None,
                Effect::Branch(_) | Effect::Return | Effect::Leave if has_link(&taken) => {
                    return Some(Layout { cfa: place.sp?, ..taken? });
                }
                Effect::Branch(target) => {
                    let is_new = self.is_new(target);
                    if !conditional {
                        is_new.then_some(())?;
                        place.at = target;
                        continue;
                    }
                    if is_new
                        && taken.is_none()
                        && let Some(slot) = self.pending.get_mut(self.waiting)
                    {
                        *slot = Place { at: target, ..place };
                        self.waiting += 1;
                    }
                }
                Effect::Return if link.is_some() || link_is_callers => {
                    let mut layout = taken.unwrap_or(Layout::new(place.base));
                    if let Some(link) = link {
                        layout.take(1 << LR, link)?;
                    }
                    return Some(Layout { cfa: place.sp?, ..layout });
                }
                Effect::Return | Effect::Leave | Effect::Table if conditional => {}
                Effect::Return | Effect::Leave | Effect::Table | Effect::Trap => return None,
            }
            place.at = place.at.wrapping_add(len);
        }
    }

    /// Whether nothing went to this target before; from now on something has.
    fn is_new(&mut self, target: u64) -> bool {
        if self.targets.get(..self.seen).is_none_or(|seen| seen.contains(&target)) {
            return false;
        }
        let Some(slot) = self.targets.get_mut(self.seen) else { return false };
        *slot = target;
        self.seen += 1;
        true
    }
}

impl Place {
    /// `None` where that can't be followed.
    fn move_to(&mut self, to: usize, from: usize, add: i32, has_taken: bool) -> Option<()> {
        match (to, from) {
            (SP, SP) => self.sp = self.sp.and_then(|sp| sp.checked_add(add)),
            // Once something is taken by one register, it can't be told by another.
            (SP, _) if has_taken => return None,
            (SP, R7) => (self.base, self.sp) = (RuleKind::R7, self.r7.checked_add(add)),
            (SP, R11) => (self.base, self.sp) = (RuleKind::R11, self.r11.checked_add(add)),
            (R7, R7) => self.r7 = self.r7.checked_add(add)?,
            (R11, R11) => self.r11 = self.r11.checked_add(add)?,
            _ => {}
        }
        Some(())
    }
}
