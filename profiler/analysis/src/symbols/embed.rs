//! Names for a trace to carry, so that a machine without the files can read them.

use super::{Frame, Symbols};
use crate::analyse::Analysis;
use crate::modules::cost;
use crate::stacks::Node;
use grapnel_trace::names::{NamedFrame, Names};
use std::collections::HashSet;

/// What became of a trace's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Embedded {
    /// Addresses that have got names.
    pub named: u64,
    /// Addresses that had names in the trace before.
    pub before: u64,
    /// Addresses of which nothing is known here.
    pub unknown: u64,
    /// Addresses whose names would be more than a reader keeps.
    pub left_out: u64,
}

/// Gives the names of all addresses that have none in the trace, each once. A name says what a report says by it: the
/// function, the file and the line of the address and of the calls that were inlined there.
///
/// # Errors
/// Those of `each`.
pub fn embed<E>(
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    mut each: impl FnMut(Names) -> Result<(), E>,
) -> Result<Embedded, E> {
    let modules = &analysis.modules;
    let mut room = modules.room_for_names();
    let mut seen = HashSet::new();
    let mut count = Embedded::default();
    for id in 1..=analysis.stacks.len() as u32 {
        let Some(node) = analysis.stacks.node(id).filter(Node::is_frame) else {
            continue;
        };
        let bias = modules.get(node.module).map_or(0, |module| module.bias);
        let address = node.lookup_pc().wrapping_sub(bias);
        if !seen.insert((node.module, address)) {
            continue;
        }
        if modules.names(node.module, address).is_some() {
            count.before += 1;
            continue;
        }
        let frames = symbols.frames(modules, &node);
        if frames.iter().all(|frame| frame.function.is_none() && frame.file.is_none()) {
            count.unknown += 1;
            continue;
        }
        let names =
            Names { module: node.module, address, frames: frames.iter().map(Frame::to_named).collect() };
        let cost = cost(&names);
        if cost > room {
            count.left_out += 1;
            continue;
        }
        room -= cost;
        count.named += 1;
        each(names)?;
    }
    Ok(count)
}

impl Frame {
    fn to_named(&self) -> NamedFrame {
        let bytes = |text: Option<&str>| text.unwrap_or_default().as_bytes().to_vec();
        NamedFrame {
            function: bytes(self.function()),
            file: bytes(self.file()),
            line: self.line.unwrap_or_default(),
        }
    }
}
