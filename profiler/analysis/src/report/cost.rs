//! What the recording cost, in words.

use super::words::{counted, duration, grouped, human_bytes};
use crate::overhead::{Estimate, Overhead};
use grapnel_trace::Meter;

/// What the recording cost the program: a figure, and what there is to say of it.
pub fn of_the_program(meter: &Meter) -> (String, String) {
    let overhead = Overhead::of(meter);
    let Some((added, each)) = overhead.added.zip(overhead.per_event()) else {
        let events = counted(overhead.events, "event");
        return ("?".into(), format!("of {events} too few were timed to say what recording cost"));
    };
    let time = |ns: f64| duration(ns as u64);
    let whole = overhead.program_cpu_ns.map_or(String::new(), |ns| format!(" of {}", duration(ns)));
    let figure = match overhead.slowdown_percent() {
        Some(Estimate { value, error }) => format!("+{value:.0}% ± {:.0}", error.ceil()),
        None => time(added.value),
    };
    let rest = format!(
        "processor time of the program: {} ± {}{whole}, {:.0} ns per event, estimated from {}",
        time(added.value),
        time(added.error),
        each.value,
        grouped(overhead.timed),
    );
    (figure, rest)
}

/// What it took besides.
pub fn besides(meter: &Meter) -> String {
    format!(
        "memory: {} mapped and {} shared in the program, {} in grapnel; grapnel ran {}, and was waited for {}",
        human_bytes(meter.agent_bytes),
        human_bytes(meter.shared_bytes),
        human_bytes(meter.command_bytes),
        duration(meter.drain_cpu_ns),
        duration(meter.waited_ns),
    )
}
