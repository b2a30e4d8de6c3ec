//! Go's heap profiles as text: what `/debug/pprof/heap?debug=1` gives there, which people read and `go tool pprof` too.
//!
//! ```text
//! heap profile: 3: 300 [10: 1000] @ heap/2
//! 1: 100 [4: 400] @ 0x4011a8 0x4012f1
//! #   0x4011a8    parse   /src/app.c:12
//! #   0x4012f1    main    /src/app.c:40
//! ```
//! A line has what is live, blocks and bytes, and in brackets what was ever allocated. Go has half of the number at the end as
//! the mean of its sample: 2 is for figures that stand for themselves, as those of Grapnel's samples do, which are estimates
//! already.

use super::pprof::{GoProfile, go_samples};
use super::stack::frames;
use crate::Analysis;
use crate::report::words::harmless;
use crate::symbols::Symbols;
use std::cmp::Reverse;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Writes a profile as [`super::pprof::write_go`] does, as text. What is first there comes first here, most first.
///
/// # Errors
/// What writing gives.
pub fn write_go_text(
    mut out: impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    profile: GoProfile,
    before: Option<&Analysis>,
) -> io::Result<()> {
    let mut samples: Vec<(u32, [i64; 4])> = go_samples(analysis, before).collect();
    samples.sort_by_key(|(_, [_, allocated, _, live])| {
        Reverse(match profile {
            GoProfile::Heap => (*live, *allocated),
            GoProfile::Allocs => (*allocated, *live),
        })
    });
    let sum = |at: usize| samples.iter().fold(0_i64, |sum, (_, value)| sum.saturating_add(value[at]));
    writeln!(out, "heap profile: {} @ heap/2", figures([sum(0), sum(1), sum(2), sum(3)]))?;
    for (stack, value) in samples {
        let (mut addresses, mut lines) = (String::new(), String::new());
        let mut last = None;
        frames(analysis, symbols, stack, |node, frame| {
            // A frame and those that were inlined into it have one address.
            let address = node.lookup_pc();
            if last.replace(std::ptr::from_ref(node)) != Some(std::ptr::from_ref(node)) {
                // Writing into a string never fails.
                let _ = write!(addresses, " {address:#x}");
            }
            let place = frame.file.map(|file| format!("{}:{}", harmless(file), frame.line.unwrap_or(0)));
            let _ = writeln!(lines, "#\t{address:#x}\t{}\t{}", frame.name, place.unwrap_or_default());
        });
        writeln!(out, "{} @{addresses}\n{lines}", figures(value))?;
    }
    out.flush()
}

fn figures([allocations, allocated, blocks, live]: [i64; 4]) -> String {
    format!("{blocks}: {live} [{allocations}: {allocated}]")
}
