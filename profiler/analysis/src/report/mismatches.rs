//! Blocks given back in the wrong way, as text, and the words for them.

use super::stack::StackPrinter;
use super::text::{Palette, TextOptions};
use super::words::{counted, source_name};
use crate::Analysis;
use crate::mismatches::{Fault, Mismatch};
use crate::symbols::Symbols;
use grapnel_trace::{Release, Source};
use std::io::{self, Write};

/// The functions that take a block back, by the name of one of them.
pub(crate) fn release_name(release: Release) -> &'static str {
    match release {
        Release::Realloc => "realloc",
        Release::Delete => "delete",
        Release::DeleteArray => "delete[]",
        _ => "free",
    }
}

pub(crate) fn fault_name(fault: Fault) -> &'static str {
    match fault {
        Fault::Function => "function",
        Fault::Alignment => "alignment",
        Fault::Size => "size",
    }
}

/// Whether both functions are those that the program called.
///
/// An operator that isn't exported, as in a program that contains libstdc++, is not hooked. What is seen of it is its call
/// of `malloc` or `free`, which is no fault of the program's.
pub(crate) fn is_seen_whole(mismatch: &Mismatch, analysis: &Analysis, symbols: &mut Symbols<'_>) -> bool {
    let mut is_called_by = |stack: u32, operator: &str| {
        let leaf = analysis.stacks.frames(stack).next();
        leaf.is_some_and(|leaf| {
            let frames = symbols.frames(&analysis.modules, &leaf);
            frames.iter().any(|frame| frame.function().is_some_and(|name| name.starts_with(operator)))
        })
    };
    let hidden_new = !matches!(mismatch.source, Source::New | Source::NewArray)
        && is_called_by(mismatch.got_by, "operator new");
    let hidden_delete = is_called_by(mismatch.freed.stack, "operator delete");
    !hidden_new && !hidden_delete
}

/// Writes the section, if there is anything to say.
pub(crate) fn section(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    options: &TextOptions,
) -> io::Result<()> {
    let Palette { title, figure, faint, .. } = options.palette;
    let found = analysis.mismatches.iter();
    let found: Vec<&Mismatch> = found.filter(|found| is_seen_whole(found, analysis, symbols)).collect();
    if found.is_empty() {
        return Ok(());
    }
    writeln!(out, "{title}Blocks given back in the wrong way{title:#}")?;
    let shown = if options.top == 0 { found.len() } else { options.top.min(found.len()) };
    let mut printer = StackPrinter { analysis, symbols, options };
    for (rank, mismatch) in found[..shown].iter().enumerate() {
        let text = sentence(mismatch);
        let count = counted(mismatch.count, "block");
        writeln!(out, "{:>3}. {figure}{text}{figure:#}  {faint}({count}){faint:#}", rank + 1)?;
        writeln!(out, "     {faint}allocated by{faint:#}")?;
        printer.print(out, mismatch.got_by)?;
        writeln!(out, "     {faint}given back by{faint:#}")?;
        printer.print(out, mismatch.freed.stack)?;
    }
    if shown < found.len() {
        let rest = counted((found.len() - shown) as u64, "more pair");
        writeln!(out, "     {faint}and {rest} of stacks; --top N shows more{faint:#}")?;
    }
    writeln!(out)
}

/// What happened to the first of the blocks.
fn sentence(mismatch: &Mismatch) -> String {
    let Mismatch { source, freed, size, .. } = *mismatch;
    let aligned = |alignment: grapnel_trace::Alignment| match alignment.bytes() {
        Some(bytes) => format!("with alignment {bytes}"),
        None => "without an alignment".into(),
    };
    let (got, by) = (source_name(source), release_name(freed.release));
    match (mismatch.fault, freed.size) {
        (Fault::Alignment, _) => {
            format!("{got} {}, {by} {}", aligned(mismatch.alignment), aligned(freed.alignment))
        }
        (Fault::Size, Some(said)) => {
            format!("{got} of {}, {by} of {}", counted(size, "byte"), counted(said, "byte"))
        }
        _ => format!("{got}, then {by}, of {}", counted(size, "byte")),
    }
}
