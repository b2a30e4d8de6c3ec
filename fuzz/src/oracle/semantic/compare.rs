//! What two runs did, held against each other.

use std::collections::VecDeque;

use grapnel_relocator::Isa;

use super::{
    inspect,
    pair::Pair,
    run::{End, Event, Run},
    world::Access,
};
use crate::oracle::{
    Verdict,
    state::{State, layout},
};

/// Which ways out of the window were calls, in order.
pub(super) fn calls(run: &Run) -> Vec<bool> {
    let ways_out = run.events.iter().filter_map(|event| match event {
        Event::Call { .. } => Some(true),
        Event::Exit { .. } => Some(false),
        _ => None,
    });
    ways_out.collect()
}

pub(super) fn compare(pair: &Pair<'_>, original: &Run, relocated: &Run) -> Verdict {
    match outcome(pair, original, relocated) {
        Verdict::Mismatch(_) if overwrites_spill(pair, &original.events, &relocated.events) => {
            Verdict::Unjudged("it writes below the stack pointer, where a register is kept meanwhile")
        }
        verdict => verdict,
    }
}

fn outcome(pair: &Pair<'_>, original: &Run, relocated: &Run) -> Verdict {
    for run in [original, relocated] {
        match run.end {
            End::Crowded => return Verdict::Unjudged("it touches too many pages"),
            End::Overrun => return Verdict::Unjudged("the emulator does not stop in time"),
            End::Misaligned => {
                return Verdict::Unjudged("it computes an address in the window and goes there");
            }
            End::Left | End::Fault | End::TooLong => {}
        }
    }
    if original.events.iter().any(|event| goes_there(pair, event)) {
        return Verdict::Unjudged("it uses the place where the relocated code is");
    }
    if [original, relocated].iter().any(|run| run.events.iter().any(|event| goes_round(pair, event))) {
        return Verdict::Unjudged("it goes round the end of the address space");
    }
    let in_code =
        |access: &Access| access.addr.wrapping_sub(pair.from).wrapping_add(8) < pair.source.len() as u64 + 16;
    if relocated
        .events
        .iter()
        .any(|event| matches!(event, Event::Access(access) if access.spill && in_code(access)))
    {
        return Verdict::Unjudged("its stack is in the code");
    }
    if original.events.iter().any(|event| writes_code(pair, event)) {
        return Verdict::Unjudged("it writes to its own code");
    }
    let endless = original.end == End::TooLong || original.guessed.is_some();
    let events = &original.events[..original.guessed.unwrap_or(original.events.len())];
    let state = match in_step(pair, (events, &original.jumps), &relocated.events, endless) {
        Ok(at_start) => at_start.unwrap_or(&original.state),
        Err(verdict) => return verdict,
    };
    if original.guessed.is_some() {
        return Verdict::Unjudged("it reads flags that are undefined");
    }
    if endless {
        return Verdict::Unjudged("it runs too long");
    }
    if relocated.end == End::TooLong {
        return Verdict::Mismatch("the original leaves, and the relocated code does not".to_owned());
    }
    if original.end == End::Fault && relocated.end == End::Fault {
        return Verdict::Unjudged("the emulator raises an exception, in both");
    }
    // A call to the next instruction, which is the window's end, leaves the return address of the place where it is.
    let link = layout(pair.isa).link.filter(|_| original.link.is_some() && original.link == relocated.link);
    let except = pair.clobbers | link.map_or(0, |link| 1 << link);
    match state.difference(&relocated.state, pair.isa, except) {
        Some((register, one, two)) => {
            Verdict::Mismatch(format!("{register} is {one:#x} in the original and {two:#x} relocated"))
        }
        None => Verdict::Same,
    }
}

/// The relocated code does what the original does, in the same order, and beyond that only spills. A constant in the
/// window itself it may have for its own, and the window's start it may leave for: then the original's state there is
/// returned.
fn in_step<'a>(
    pair: &Pair<'_>,
    (original, jumps): (&'a [Event], &[u64]),
    relocated: &[Event],
    endless: bool,
) -> Result<Option<&'a State>, Verdict> {
    let mut theirs = original.iter().peekable();
    let mut ours: VecDeque<&Event> = relocated.iter().collect();
    let mut done: Vec<&Event> = Vec::new();
    loop {
        let how = match (theirs.peek(), ours.front()) {
            (None, None) => return Ok(None),
            // No one knows what comes next in the original.
            (None, Some(_)) if endless => return Ok(None),
            (Some(one), Some(two)) => match same(pair, one, two) {
                Ok(()) => {
                    theirs.next();
                    done.extend(ours.pop_front());
                    continue;
                }
                Err(how) => how,
            },
            _ => String::new(),
        };
        if let (Some(Event::Start { state }), Some(Event::Exit { target, .. })) =
            (theirs.peek(), ours.front())
            && *target == pair.from
        {
            return Ok(Some(state));
        }
        // The relocated code gets to the start behind the last of its spills. What looks like one may be a store that the
        // original makes behind the start.
        if let (Some(Event::Start { .. }), Some(two @ Event::Access(Access { spill: true, .. }))) =
            (theirs.peek(), ours.front())
            && !does_behind(pair, theirs.clone().skip(1), two)
        {
            ours.pop_front();
            continue;
        }
        let optional = theirs.peek().is_some_and(|event| is_optional(pair, event));
        let still_to_come = |event: &&&Event| ours.iter().any(|two| same(pair, event, two).is_ok());
        if optional && theirs.peek().is_some_and(|event| !still_to_come(&event)) {
            theirs.next();
        } else if let Some(later) = theirs.peek().and_then(|event| stored_later(pair, event, &ours)) {
            done.extend(ours.remove(later));
            theirs.next();
        } else if ours.front().is_some_and(|event| is_private(pair, event, &done)) {
            ours.pop_front();
        } else if optional {
            theirs.next();
        } else {
            if ours.front().is_some_and(|event| is_lost_spill(pair, event)) {
                return Err(Verdict::Unjudged(
                    "a spill in an IT block, where the stack pointer is not followed",
                ));
            }
            if computes_way_in(pair, &ours, jumps) {
                return Err(Verdict::Unjudged("it computes an address in the window and goes there"));
            }
            return Err(Verdict::Mismatch(match (theirs.peek(), ours.front()) {
                (Some(one), Some(two)) => format!("{how}original {one:x?}\nrelocated {two:x?}"),
                (Some(one), None) => format!("original {one:x?}\nrelocated nothing more"),
                (None, two) => format!("original nothing more\nrelocated {two:x?}"),
            }));
        }
    }
}

/// The first that the original does behind its start, and that the relocated code can't leave out, is this.
fn does_behind<'a>(pair: &Pair<'_>, mut behind: impl Iterator<Item = &'a Event>, two: &Event) -> bool {
    behind.find(|event| !is_optional(pair, event)).is_some_and(|event| same(pair, event, two).is_ok())
}

/// The offset in the window of the instruction that made an access in the relocated code.
fn made_by(pair: &Pair<'_>, access: &Access) -> Option<usize> {
    pair.origin(access.by.wrapping_sub(pair.to) as usize)
}

/// The same of an access in the original.
fn asked_by(pair: &Pair<'_>, access: &Access) -> Option<usize> {
    pair.entry_of(access.by.wrapping_sub(pair.from) as usize).map(|(from, _)| from)
}

/// Two accesses are of the same IT block of the window. After a jump back the emulator does not always tell when the next
/// instruction of a block begins.
fn of_one_block(pair: &Pair<'_>, one: Option<usize>, two: Option<usize>) -> bool {
    let block = |offset: Option<usize>| inspect::block_of(pair.code(), offset?);
    pair.isa == Isa::T32 && block(one).is_some() && block(one) == block(two)
}

/// A32 and T32: where among what is still to come the same instruction makes this store. The stores of one `stm` have no
/// order (Arm ARM, B2.2: it is not single-copy atomic, and its accesses are not ordered among each other).
fn stored_later(pair: &Pair<'_>, event: &Event, ours: &VecDeque<&Event>) -> Option<usize> {
    let Event::Access(one @ Access { written: Some(_), .. }) = event else { return None };
    if !matches!(pair.isa, Isa::A32 | Isa::T32) {
        return None;
    }
    let of_the_same = |event: &&&Event| matches!(event, Event::Access(access) if made_by(pair, access) == asked_by(pair, one));
    ours.iter().take_while(of_the_same).position(|two| same(pair, event, two).is_ok())
}

/// An access that no one else notices: to a spill, or a read of what the same instruction of the window has just
/// stored.
fn is_private(pair: &Pair<'_>, event: &Event, done: &[&Event]) -> bool {
    match event {
        Event::Access(Access { spill: true, .. }) => true,
        Event::Access(read @ Access { written: None, .. }) => done.iter().rev().any(|event| {
            matches!(event, Event::Access(store @ Access { written: Some(_), .. })
                if (store.addr, store.size) == (read.addr, read.size) && made_by(pair, store) == made_by(pair, read))
        }),
        _ => false,
    }
}

/// One of the original's instructions writes to memory where the relocated code keeps a register for it meanwhile.
fn overwrites_spill(pair: &Pair<'_>, theirs: &[Event], ours: &[Event]) -> bool {
    fn writes(events: &[Event]) -> impl Iterator<Item = &Access> {
        events.iter().filter_map(|event| match event {
            Event::Access(access) => access.written.is_some().then_some(access),
            _ => None,
        })
    }
    let overlaps = |one: &Access, two: &Access| {
        one.addr.wrapping_sub(two.addr) < two.size as u64 || two.addr.wrapping_sub(one.addr) < one.size as u64
    };
    let what = |access: &Access| (access.addr, access.size, access.written);
    writes(ours).filter(|access| access.spill).any(|spill| {
        let by = made_by(pair, spill);
        let mut own = writes(theirs).filter(|own| asked_by(pair, own) == by);
        own.any(|own| overlaps(own, spill) && what(own) != what(spill))
    })
}

/// T32: an access right at the stack pointer by a member of an IT block of the window. The emulator does not tell where
/// the original's stack pointer is at each member.
fn is_lost_spill(pair: &Pair<'_>, event: &Event) -> bool {
    let Event::Access(access) = event else { return false };
    let block = made_by(pair, access).and_then(|offset| inspect::block_of(pair.code(), offset));
    pair.isa == Isa::T32 && !access.spill && is_at_stack(access) && block.is_some()
}

fn is_at_stack(access: &Access) -> bool {
    access.addr.wrapping_sub(access.stack) < 16
}

/// The relocated code leaves for a place in the window that the original came to by an address in a register or from
/// memory. It may spill what it computes the address with, where the stack pointer is not followed: what the original
/// goes on with there may have moved it as far.
fn computes_way_in(pair: &Pair<'_>, ours: &VecDeque<&Event>, jumps: &[u64]) -> bool {
    let way = ours.iter().find(|event| !matches!(event, Event::Access(access) if is_at_stack(access)));
    let Some(Event::Exit { target, .. } | Event::Call { target, .. }) = way else { return false };
    *target != pair.from && jumps.contains(target)
}

/// A store to the window, or to what it has for a constant in there.
fn writes_code(pair: &Pair<'_>, event: &Event) -> bool {
    let Event::Access(Access { addr, size, written: Some(_), .. }) = event else { return false };
    let size = *size as u64;
    addr.wrapping_sub(pair.from).wrapping_add(size) < pair.window_len as u64 + size
}

fn goes_there(pair: &Pair<'_>, event: &Event) -> bool {
    match event {
        Event::Call { target: addr, .. }
        | Event::Exit { target: addr, .. }
        | Event::Access(Access { addr, .. }) => addr.wrapping_sub(pair.to) < pair.relocated.len() as u64,
        _ => false,
    }
}

/// An access to the last bytes of the address space and the first: the emulator splits it in other ways at other times.
fn goes_round(pair: &Pair<'_>, event: &Event) -> bool {
    let Event::Access(Access { addr, size, .. }) = event else { return false };
    let last = if layout(pair.isa).wide { u64::MAX } else { u64::from(u32::MAX) };
    last - (addr & last) < *size as u64 - 1
}

/// A read of the window's own bytes, or the way through its start.
fn is_optional(pair: &Pair<'_>, event: &Event) -> bool {
    match event {
        Event::Access(Access { addr, size, written: None, .. }) => {
            let (into, len) = (addr.wrapping_sub(pair.from), pair.window_len as u64);
            into < len && into + *size as u64 <= len
        }
        Event::Start { .. } => true,
        _ => false,
    }
}

/// Whether two events are the same for everyone, and if not why.
fn same(pair: &Pair<'_>, one: &Event, two: &Event) -> Result<(), String> {
    let states = |one, two, except| match difference(pair, one, two, except) {
        None => Ok(()),
        Some(how) => Err(how),
    };
    let equal = match (one, two) {
        (Event::Access(one), Event::Access(two)) => {
            let (asked, made) = (asked_by(pair, one), made_by(pair, two));
            (one.addr, one.size, one.written) == (two.addr, two.size, two.written)
                && (asked == made || of_one_block(pair, asked, made))
        }
        (
            Event::Call { target, thumb, returns_to, state },
            Event::Call { target: target2, thumb: thumb2, returns_to: returns_to2, state: state2 },
        ) => {
            let link = layout(pair.isa).link.map_or(0, |link| 1 << link);
            states(state, state2, pair.clobbers | link)?;
            (target, thumb, returns_to) == (target2, thumb2, returns_to2)
        }
        (Event::Syscall { state }, Event::Syscall { state: state2 }) => {
            return states(state, state2, pair.clobbers);
        }
        (Event::Xbegin(one), Event::Xbegin(two)) => one == two,
        (Event::Fault { cause, offset }, Event::Fault { cause: cause2, offset: offset2 }) => {
            (cause, offset) == (cause2, offset2)
        }
        (
            Event::Exit { target, thumb, in_it_block },
            Event::Exit { target: target2, thumb: thumb2, in_it_block: in_it_block2 },
        ) => (target, thumb, in_it_block) == (target2, thumb2, in_it_block2),
        _ => false,
    };
    if equal { Ok(()) } else { Err(String::new()) }
}

fn difference(pair: &Pair<'_>, one: &State, two: &State, except: u32) -> Option<String> {
    let (register, one, two) = one.difference(two, pair.isa, except)?;
    Some(format!("{register} is {one:#x} in the original and {two:#x} relocated\n"))
}
