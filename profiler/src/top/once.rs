//! One view as text: for pipes, for scripts, and for terminals that can't do more.

use super::app::App;
use super::draw::{draw, height_of};
use super::feed::Feed;
use super::names::{Names, look_up_now};
use super::view::{Ask, Order};
use grapnel_analysis::symbols::SearchPath;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

/// Where there is no terminal there is no edge; names end somewhere all the same.
const WIDEST: u16 = 160;
/// Of the lines at the bottom, those that tell of keys.
const KEYS: usize = 1;

/// Prints what there is.
///
/// # Errors
/// What writing gives. A reader that closes early wanted no more.
pub(super) fn print(feed: &mut Feed, order: Order, top: usize, search: SearchPath) -> io::Result<ExitCode> {
    let mut view = feed.view(Ask { order, stack: None });
    view.rows.truncate(top);
    let mut app = App::new(order, false, false);
    let rows = view.rows.len();
    app.show(view);
    // It marks what is chosen, and nothing is.
    let stdout = io::stdout();
    let width = if stdout.is_terminal() {
        terminal_size::terminal_size_of(&stdout).map_or(80, |(width, _)| width.0)
    } else {
        WIDEST
    };
    let area = Rect::new(0, 0, width, height_of(rows));
    let mut names = Names::default();
    let mut picture = |names: &mut Names| {
        let mut buffer = Buffer::empty(area);
        draw(&mut buffer, &mut app, names);
        buffer
    };
    picture(&mut names);
    let lookup = names.take_wanted(&feed.view(Ask::default()).modules);
    if let Some(lookup) = lookup {
        names.learn(look_up_now(search, &lookup));
    }
    // Functions that were inlined took the room of others: what is shown now is known, or stays an address.
    let text = text_of(&picture(&mut names));
    match stdout.lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// The picture's lines, without what is to the right of them or below.
fn text_of(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut lines = Vec::new();
    for y in area.top()..area.bottom() - KEYS as u16 {
        lines.push(line_of(buffer, y));
    }
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

/// A line of a picture.
pub(super) fn line_of(buffer: &Buffer, y: u16) -> String {
    let mut line = String::new();
    let mut skip = 0;
    for x in buffer.area.left()..buffer.area.right() {
        let symbol = buffer[(x, y)].symbol();
        // What is two columns wide has an empty cell behind it.
        if skip == 0 {
            line.push_str(symbol);
            skip = grapnel_analysis::report::words::columns(symbol);
        }
        skip = skip.saturating_sub(1);
    }
    line.trim_end().to_owned()
}
