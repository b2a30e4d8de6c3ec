//! A stack as lines of text, leaf first.

use super::folded::{Line, folded, shown};
use super::names::abbreviated;
use super::text::{Palette, TextOptions};
use super::words::{columns, counted, harmless, human_bytes, share};
use crate::Analysis;
use crate::stacks::Node;
use crate::symbols::{BEFORE, Frame, Symbols};
use grapnel_trace::Module;
use std::borrow::Cow;
use std::io::{self, Write};

const INDENT: &str = "       ";
/// A name is never folded to fewer columns than this, however narrow the terminal.
const NARROWEST: usize = 24;
const LONGEST_PATH: usize = 32;

/// Prints stacks.
#[derive(Debug)]
pub struct StackPrinter<'p, 'a> {
    /// What they are of.
    pub analysis: &'p Analysis,
    /// What the frames are called.
    pub symbols: &'p mut Symbols<'a>,
    /// How they look.
    pub options: &'p TextOptions,
}

impl StackPrinter<'_, '_> {
    /// Writes a stack, a line for each frame.
    ///
    /// # Errors
    /// What writing gives.
    pub fn print(&mut self, out: &mut impl Write, stack: u32) -> io::Result<()> {
        let faint = self.options.palette.faint;
        let nodes: Vec<Node> = self.analysis.stacks.frames(stack).collect();
        if nodes.is_empty() {
            return writeln!(out, "{INDENT}{faint}no stack{faint:#}");
        }
        let lines = folded(&nodes);
        let (first, hidden, last) = shown(&lines, self.options.frames);
        self.lines(out, &nodes, first)?;
        if hidden > 0 {
            writeln!(out, "{INDENT}{faint}… {hidden} more frames; --frames 0 shows them{faint:#}")?;
        }
        self.lines(out, &nodes, last)
    }

    fn lines(&mut self, out: &mut impl Write, nodes: &[Node], lines: &[Line]) -> io::Result<()> {
        let faint = self.options.palette.faint;
        for line in lines {
            match *line {
                Line::Frame(at) => self.node(out, nodes, at)?,
                Line::Again { frames: 1, times } => {
                    writeln!(out, "{INDENT}{faint}… the same frame {times} times more{faint:#}")?;
                }
                Line::Again { frames, times } => {
                    writeln!(out, "{INDENT}{faint}… these {frames} frames {times} times more{faint:#}")?;
                }
            }
        }
        Ok(())
    }

    /// Writes the sites that held most at the peak, with their stacks. `peak` gives what a site held then, and its stack;
    /// `context` all else that there is to say of it.
    pub(super) fn ranked<S>(
        &mut self,
        out: &mut impl Write,
        sites: &[S],
        whole: u64,
        peak: impl Fn(&S) -> (u64, u32),
        context: impl Fn(&S) -> String,
    ) -> io::Result<()> {
        let mut sites: Vec<&S> = sites.iter().filter(|site| peak(site).0 > 0).collect();
        sites.sort_by_key(|site| core::cmp::Reverse(peak(site).0));
        let TextOptions { top, palette: Palette { figure, faint, .. }, .. } = *self.options;
        let shown = if top == 0 { sites.len() } else { top.min(sites.len()) };
        for (rank, site) in sites[..shown].iter().enumerate() {
            let (bytes, stack) = peak(site);
            let (text, share, context) = (human_bytes(bytes), share(bytes, whole), context(site));
            writeln!(out, "{:>3}. {figure}{text}{figure:#}  {share}  {faint}({context}){faint:#}", rank + 1)?;
            self.print(out, stack)?;
        }
        if shown < sites.len() {
            let rest = counted((sites.len() - shown) as u64, "more site");
            writeln!(out, "     {faint}and {rest}; --top N shows more{faint:#}")?;
        }
        writeln!(out)
    }

    fn node(&mut self, out: &mut impl Write, nodes: &[Node], at: usize) -> io::Result<()> {
        let node = &nodes[at];
        let faint = self.options.palette.faint;
        if let Some(mark) = node.mark() {
            return writeln!(out, "{INDENT}{faint}{mark}{faint:#}");
        }
        if node.is_before() {
            return writeln!(out, "{INDENT}{faint}{BEFORE}{faint:#}");
        }
        let module = self.analysis.modules.get(node.module);
        let guess = at > 0 && nodes[at - 1].caller_is_guess();
        let options = self.options;
        for frame in self.symbols.frames(&self.analysis.modules, node) {
            self::frame(out, node, module, frame, guess, options)?;
        }
        Ok(())
    }
}

fn frame(
    out: &mut impl Write,
    node: &Node,
    module: Option<&Module>,
    frame: &Frame,
    guess: bool,
    options: &TextOptions,
) -> io::Result<()> {
    let name = harmless(frame.function().unwrap_or("??"));
    let mut marks = String::new();
    if frame.inlined() {
        marks.push_str(" (inlined)");
    }
    if guess {
        marks.push_str(" (guess)");
    }
    let place = place(node, module, Some(frame), options.width.is_some());
    let name = match options.width {
        Some(width) => {
            let used = INDENT.len() + columns(&marks) + columns(&place) + 1;
            abbreviated(&name, width.saturating_sub(used).max(NARROWEST))
        }
        None => name,
    };
    let (function, faint) = (options.palette.function, options.palette.faint);
    writeln!(out, "{INDENT}{function}{name}{function:#}{marks} {faint}{place}{faint:#}")
}

/// Where a frame lies, with no more of a path than has room on a line, as it can stand in a terminal. Without symbols
/// `frame` is nothing.
pub fn place_of(node: &Node, module: Option<&Module>, frame: Option<&Frame>) -> String {
    place(node, module, frame, true)
}

/// `at /src/a.c:12 [app]`; without a line `[libx.so+0x1234]`; in no module `[0x7f0012345678]`.
fn place(node: &Node, module: Option<&Module>, frame: Option<&Frame>, narrow: bool) -> String {
    let Some(module) = module else {
        return if node.is_frame() { format!("[{:#x}]", node.pc) } else { String::new() };
    };
    let path = String::from_utf8_lossy(&module.path);
    let module_name = match path.rsplit('/').next() {
        Some("") | None => Cow::Borrowed("?"),
        // The kernel's own, as "[vdso]", comes in brackets already.
        Some(name) => harmless(name.trim_matches(['[', ']'])),
    };
    match frame.map_or((None, None), |frame| (frame.file(), frame.line())) {
        (Some(file), Some(line)) => {
            let file = if narrow { end_of_path(file) } else { file.into() };
            format!("at {}:{line} [{module_name}]", harmless(&file))
        }
        _ => format!("[{module_name}+{:#x}]", node.pc.wrapping_sub(module.bias)),
    }
}

/// The last two parts of a path that is too long to stand beside a name.
fn end_of_path(path: &str) -> Cow<'_, str> {
    if columns(path) <= LONGEST_PATH {
        return Cow::Borrowed(path);
    }
    match path.rmatch_indices('/').nth(1) {
        Some((at, _)) if at > 0 => Cow::Owned(format!("…{}", &path[at..])),
        _ => Cow::Borrowed(path),
    }
}

#[cfg(test)]
mod tests {
    use super::end_of_path;

    #[test]
    fn a_long_path_keeps_its_end() {
        assert_eq!(end_of_path("/src/a.c"), "/src/a.c");
        assert_eq!(end_of_path("/usr/include/c++/12/bits/stl_vector.h"), "…/bits/stl_vector.h");
        assert_eq!(
            end_of_path("/a_very_long_name_in_the_root_directory.c"),
            "/a_very_long_name_in_the_root_directory.c"
        );
    }
}
