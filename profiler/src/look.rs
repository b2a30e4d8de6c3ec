//! How text for people looks: the same options in every subcommand that prints stacks.

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use clap::{Args, ValueEnum};
use grapnel_analysis::report::text::{Palette, TextOptions};
use std::io::{self, IsTerminal};

/// Options of every subcommand that prints stacks.
#[derive(Args, Clone, Debug)]
pub(crate) struct LookArgs {
    /// Frames to show of each stack, beyond which its middle is left out; 0 shows all. Calls that the compiler inlined, and
    /// recursion, which is told once, don't count.
    #[arg(long, value_name = "N", default_value_t = 16)]
    frames: usize,
    /// When to use colors.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    color: Color,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

impl LookArgs {
    /// The same with the number of sites to show, and with what standard output is.
    pub(crate) fn options(&self, top: Option<usize>, stdout: &io::Stdout) -> TextOptions {
        TextOptions {
            top: top.unwrap_or(TextOptions::default().top),
            frames: self.frames,
            width: width(stdout),
            palette: if use_color(self.color, stdout) { Palette::colored() } else { Palette::default() },
        }
    }
}

fn use_color(color: Color, stdout: &impl RawStream) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => AutoStream::choice(stdout) != ColorChoice::Never,
    }
}

/// For terminals that don't tell their size.
const USUAL_WIDTH: usize = 100;

/// The terminal's columns; none when the output is no terminal, which has no edge.
fn width(stdout: &io::Stdout) -> Option<usize> {
    if !stdout.is_terminal() {
        return None;
    }
    Some(terminal_size::terminal_size_of(stdout).map_or(USUAL_WIDTH, |(width, _)| usize::from(width.0)))
}
