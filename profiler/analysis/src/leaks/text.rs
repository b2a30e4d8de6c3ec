//! What a scan found, as text.

use super::found::{Count, Found, Kind, LeakSite};
use super::words;
use crate::Analysis;
use crate::export::stack::frames;
use crate::report::stack::StackPrinter;
use crate::report::text::{Palette, TextOptions};
use crate::report::words::{counted, duration, grouped, harmless, human_bytes};
use crate::symbols::Symbols;
use grapnel_trace::leaks::{Path, RootKind};
use std::io::{self, Write};

/// Paths that are shown of a site.
const PATHS: usize = 3;
/// Steps that are shown of a path; the middle of a longer one is left out.
pub(crate) const MOST_STEPS: usize = 12;

/// Writes the figures, and the sites of these kinds with their paths.
///
/// # Errors
/// What writing gives.
pub fn write(
    mut out: impl Write,
    analysis: &Analysis,
    found: &Found,
    symbols: &mut Symbols<'_>,
    options: &TextOptions,
    kinds: &[Kind],
) -> io::Result<()> {
    figures(&mut out, found, options)?;
    for &kind in kinds {
        section(&mut out, analysis, found, symbols, options, kind)?;
    }
    out.flush()
}

/// Writes the figures and what is lost, if leaks were looked for: a report's section.
pub(crate) fn section_of_report(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    options: &TextOptions,
) -> io::Result<()> {
    let Some(found) = &analysis.leaks else { return Ok(()) };
    figures(out, found, options)?;
    for kind in [Kind::Direct, Kind::Indirect, Kind::Possible] {
        section(out, analysis, found, symbols, options, kind)?;
    }
    Ok(())
}

/// Writes the figures, and how they came to be.
///
/// # Errors
/// What writing gives.
pub fn figures(out: &mut impl Write, found: &Found, options: &TextOptions) -> io::Result<()> {
    let Palette { title, figure, faint, warning, .. } = options.palette;
    let scan = &found.scan;
    let moment = if scan.at_exit { "at the process's end" } else { "while the process ran" };
    writeln!(out, "{title}Leaks, {moment}{title:#}")?;
    for kind in Kind::ALL {
        let Count { blocks, bytes } = found.total(kind);
        let text = human_bytes(bytes);
        let rest = format!("{} in {}", counted(bytes, "byte"), counted(blocks, "block"));
        writeln!(out, "  {:<16}{figure}{text:>12}{figure:#}   {rest}", words::kind(kind))?;
    }
    let mut policy = match words::interior_name(scan.interior) {
        "start" => "pointers to the start of a block count".to_owned(),
        "known" => "pointers to the start of a block count, and those of known forms".to_owned(),
        _ => "any pointer into a block counts".to_owned(),
    };
    if scan.tags != 0 {
        policy.push_str(&format!("; tags {:#x} are taken out", scan.tags));
    }
    let (at, stood) = (duration(scan.time_ns), duration(scan.stopped_ns));
    let roots = human_bytes(scan.root_bytes);
    writeln!(
        out,
        "  {faint}looked for at {at}, in {roots} of roots; the process stood still {stood}{faint:#}"
    )?;
    writeln!(out, "  {faint}{policy}{faint:#}")?;
    for doubt in words::doubts(scan) {
        writeln!(out, "  {warning}note: {doubt}{warning:#}")?;
    }
    writeln!(out)
}

fn section(
    out: &mut impl Write,
    analysis: &Analysis,
    found: &Found,
    symbols: &mut Symbols<'_>,
    options: &TextOptions,
    kind: Kind,
) -> io::Result<()> {
    let Palette { title, figure, faint, .. } = options.palette;
    let sites: Vec<&LeakSite> = found.of(kind).collect();
    if sites.is_empty() {
        return Ok(());
    }
    let name = words::kind(kind);
    let (first, rest) = name.split_at(1);
    writeln!(out, "{title}{}{rest}{title:#}", first.to_uppercase())?;
    let shown = if options.top == 0 { sites.len() } else { options.top.min(sites.len()) };
    for (rank, site) in (1..).zip(&sites[..shown]) {
        let mut context = counted(site.own.blocks, "block");
        if !site.holds.is_empty() {
            let with = if kind == Kind::Direct { "lost with" } else { "held by" };
            let (bytes, blocks) = (human_bytes(site.holds.bytes), counted(site.holds.blocks, "block"));
            context.push_str(&format!("; {bytes} in {blocks} {with} them"));
        }
        let text = human_bytes(site.own.bytes);
        writeln!(out, "{rank:>3}. {figure}{text}{figure:#}  {faint}({context}){faint:#}")?;
        StackPrinter { analysis, symbols, options }.print(out, site.stack)?;
        if kind != Kind::Direct && kind != Kind::Possible {
            paths(out, analysis, found, symbols, options, site)?;
        }
    }
    if shown < sites.len() {
        let bytes = sites[shown..].iter().fold(0_u64, |sum, site| sum.saturating_add(site.own.bytes));
        let (more, bytes) = (counted((sites.len() - shown) as u64, "more site"), human_bytes(bytes));
        writeln!(out, "     {faint}and {more} with {bytes} together; --top N shows more{faint:#}")?;
    }
    writeln!(out)
}

fn paths(
    out: &mut impl Write,
    analysis: &Analysis,
    found: &Found,
    symbols: &mut Symbols<'_>,
    options: &TextOptions,
    site: &LeakSite,
) -> io::Result<()> {
    let faint = options.palette.faint;
    for &node in site.paths.iter().take(PATHS) {
        let Some((root, way)) = found.way(node) else { continue };
        match root.kind {
            RootKind::Lost if way.len() == 1 => {
                writeln!(out, "     {faint}held by{faint:#} others of this stack")?;
            }
            RootKind::Lost => writeln!(out, "     {faint}held by lost blocks{faint:#}")?,
            _ => writeln!(out, "     {faint}held by{faint:#} {}", words::root(analysis, root))?,
        }
        // The last is the site itself.
        let steps = way.len() - 1;
        for (at, (path, next)) in way.iter().zip(&way[1..]).enumerate() {
            if steps > MOST_STEPS && at == MOST_STEPS / 2 {
                writeln!(
                    out,
                    "       {faint}… {} more blocks on the way{faint:#}",
                    grouped((steps - MOST_STEPS) as u64)
                )?;
            }
            if steps <= MOST_STEPS || at < MOST_STEPS / 2 || at >= steps - MOST_STEPS / 2 {
                let step = step(analysis, symbols, path);
                writeln!(out, "       {faint}by{faint:#} {step}{faint}, at +{}{faint:#}", next.offset)?;
            }
        }
    }
    if let Some(more) = site.paths.len().checked_sub(PATHS).filter(|&more| more > 0) {
        writeln!(out, "     {faint}and in {}{faint:#}", counted(more as u64, "more way"))?;
    }
    Ok(())
}

/// `a block of make_node at list.c:12`, or of how many.
pub(crate) fn step(analysis: &Analysis, symbols: &mut Symbols<'_>, path: &Path) -> String {
    let blocks = path.blocks.saturating_add(path.inner_blocks);
    let what = if blocks == 1 { "a block".to_owned() } else { counted(blocks, "block") };
    format!("{what} of {}", place(analysis, symbols, path.stack))
}

/// The function that allocated, and where in it: the first whose source is the program's own, since the blocks of containers
/// are all allocated by the same few functions of the standard library. The innermost, if there is none.
pub(crate) fn place(analysis: &Analysis, symbols: &mut Symbols<'_>, stack: u32) -> String {
    let (mut text, mut is_own) = (None, false);
    frames(analysis, symbols, stack, |_, frame| {
        let own = frame.file.is_some_and(is_own_source);
        if is_own || text.is_some() && !own {
            return;
        }
        is_own = own;
        let file = frame.file.map(|file| file.rsplit('/').next().unwrap_or(file));
        text = Some(match (file, frame.line) {
            (Some(file), Some(line)) => format!("{} at {}:{line}", frame.name, harmless(file)),
            _ => frame.name.into_owned(),
        });
    });
    text.unwrap_or_default()
}

/// Whether a source file is none that comes with a compiler or a library: those of libc have relative paths.
fn is_own_source(file: &str) -> bool {
    file.starts_with('/') && !["/usr/", "/rustc/", "/rust/"].iter().any(|foreign| file.starts_with(foreign))
}

#[cfg(test)]
mod tests {
    use super::is_own_source;

    #[test]
    fn sources_of_libraries_are_told_apart() {
        for own in ["/tmp/a.cc", "/home/me/usr/list.c", "/usr2/list.c"] {
            assert!(is_own_source(own), "{own}");
        }
        for foreign in
            ["/usr/include/c++/12/bits/new_allocator.h", "/rustc/5980/library/alloc/src/alloc.rs", "nptl/a.c"]
        {
            assert!(!is_own_source(foreign), "{foreign}");
        }
    }
}
