//! What two runs did, held against each other.

use super::{
    engine::{Access, Spill},
    pair::Pair,
    run::{End, Event, Run},
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
    for run in [original, relocated] {
        match run.end {
            End::TooLong => return Verdict::Unjudged("it runs too long"),
            End::Crowded => return Verdict::Unjudged("it touches too many pages"),
            End::Left | End::Fault => {}
        }
    }
    if original.events.iter().any(|event| goes_there(pair, event)) {
        return Verdict::Unjudged("it goes to where the relocated code is");
    }
    let state = match in_step(pair, &original.events, &relocated.events) {
        Ok(at_start) => at_start.unwrap_or(&original.state),
        Err(how) => return Verdict::Mismatch(how),
    };
    if original.end == End::Fault && relocated.end == End::Fault {
        return Verdict::Unjudged("the emulator raises an exception, in both");
    }
    match state.difference(&relocated.state, pair.isa, pair.clobbers) {
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
    original: &'a [Event],
    relocated: &[Event],
) -> Result<Option<&'a State>, String> {
    let (mut theirs, mut ours) = (original.iter().peekable(), relocated.iter().peekable());
    loop {
        let how = match (theirs.peek(), ours.peek()) {
            (None, None) => return Ok(None),
            (Some(one), Some(two)) => match same(pair, one, two) {
                Ok(()) => {
                    (theirs.next(), ours.next());
                    continue;
                }
                Err(how) => how,
            },
            _ => String::new(),
        };
        if let (Some(Event::Start { state }), Some(Event::Exit { target, .. })) = (theirs.peek(), ours.peek())
            && *target == pair.from
        {
            return Ok(Some(state));
        }
        if ours.next_if(|event| matches!(event, Event::Access(Access { spill: Spill::Yes, .. }))).is_some()
            || theirs.next_if(|event| is_optional(pair, event)).is_some()
        {
            continue;
        }
        return Err(match (theirs.peek(), ours.peek()) {
            (Some(one), Some(two)) => format!("{how}original {one:x?}\nrelocated {two:x?}"),
            (Some(one), None) => format!("original {one:x?}\nrelocated nothing more"),
            (None, two) => format!("original nothing more\nrelocated {two:x?}"),
        });
    }
}

fn goes_there(pair: &Pair<'_>, event: &Event) -> bool {
    match event {
        Event::Call { target, .. } | Event::Exit { target, .. } => {
            target.wrapping_sub(pair.to) < pair.relocated.len() as u64
        }
        _ => false,
    }
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
            (one.addr, one.size, one.written) == (two.addr, two.size, two.written)
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
        (Event::Exit { target, thumb }, Event::Exit { target: target2, thumb: thumb2 }) => {
            (target, thumb) == (target2, thumb2)
        }
        _ => false,
    };
    if equal { Ok(()) } else { Err(String::new()) }
}

fn difference(pair: &Pair<'_>, one: &State, two: &State, except: u32) -> Option<String> {
    let (register, one, two) = one.difference(two, pair.isa, except)?;
    Some(format!("{register} is {one:#x} in the original and {two:#x} relocated\n"))
}
