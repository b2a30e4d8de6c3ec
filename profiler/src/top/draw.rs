//! A view as a picture: whatever the names and the terminal's size are, it stays in its lines.

use super::app::{App, Page};
use super::figures::{bytes, grown, number};
use super::names::{Label, Names};
use super::trend::fitted;
use super::view::{Drill, Figures, Order, Row, State, View};
use grapnel_analysis::report::names::abbreviated;
use grapnel_analysis::report::words::{columns, counted, duration, folded, grouped, human_bytes};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Sparkline, Widget};
use std::borrow::Cow;

/// Smaller terminals show nothing.
const SMALLEST: (u16, u16) = (20, 4);
/// Lower ones have no room for a trend.
const ROOM_FOR_TREND: u16 = 16;
const TREND: u16 = 2;
/// The width of all columns before a site's name.
const FIGURES: usize = 38;

/// Colours and such.
struct Look {
    title: Style,
    head: Style,
    cursor: Style,
    grown: Style,
    shrunk: Style,
    faint: Style,
    warning: Style,
}

impl Look {
    fn new(colors: bool) -> Self {
        let plain = Style::new();
        let color = |color| if colors { plain.fg(color) } else { plain };
        Self {
            title: plain.add_modifier(Modifier::BOLD),
            head: plain.add_modifier(Modifier::UNDERLINED),
            cursor: plain.add_modifier(Modifier::REVERSED),
            grown: color(Color::Red),
            shrunk: color(Color::Green),
            faint: plain.add_modifier(Modifier::DIM),
            warning: color(Color::Yellow).add_modifier(Modifier::BOLD),
        }
    }
}

/// A part of a picture: lines from the top to the bottom.
struct Lines<'b> {
    buffer: &'b mut Buffer,
    area: Rect,
    next: u16,
}

impl Lines<'_> {
    fn room(&self) -> usize {
        usize::from(self.area.height.saturating_sub(self.next))
    }

    /// The next line, of parts that follow each other.
    fn line(&mut self, parts: &[(&str, Style)]) {
        if self.room() == 0 {
            return;
        }
        let (mut x, y) = (self.area.x, self.area.y + self.next);
        for &(text, style) in parts {
            let left = usize::from(self.area.right().saturating_sub(x));
            (x, _) = self.buffer.set_stringn(x, y, text, left, style);
        }
        self.next += 1;
    }

    /// The line before, in another style from end to end.
    fn style_last(&mut self, style: Style) {
        let y = self.area.y + self.next.saturating_sub(1);
        self.buffer.set_style(Rect { y, height: 1, ..self.area }, style);
    }
}

/// Draws everything.
pub(super) fn draw(buffer: &mut Buffer, app: &mut App, names: &mut Names) {
    let (area, look) = (buffer.area, Look::new(app.colors));
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = "grapnel top needs more room";
        if !area.is_empty() {
            buffer.set_stringn(area.x, area.y, text, usize::from(area.width), Style::new());
        }
        return;
    }
    let footer = if area.height >= 6 { 2 } else { 1 };
    let main = Rect { height: area.height - footer, ..area };
    let mut lines = Lines { buffer: &mut *buffer, area: main, next: 0 };
    match app.page {
        Page::Help => help(&mut lines, &look),
        Page::Sites => {
            head(&mut lines, app, &look);
            sites(&mut lines, app, names, &look);
        }
        Page::Stack => {
            head(&mut lines, app, &look);
            stack(&mut lines, app, names, &look);
        }
    }
    let bottom = Rect { y: main.bottom(), height: footer, ..area };
    let mut lines = Lines { buffer, area: bottom, next: 0 };
    if footer == 2 {
        status(&mut lines, app, &look);
    }
    keys(&mut lines, app.page, &look);
}

/// As many lines as `--once` has sites.
pub(super) fn height_of(rows: usize) -> u16 {
    u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(4 + TREND + 2).max(ROOM_FOR_TREND)
}

fn head(lines: &mut Lines<'_>, app: &App, look: &Look) {
    let view = &app.view;
    let state = match &view.state {
        State::Unread => "reading".into(),
        State::Reading(percent) => format!("reading, {percent}% so far"),
        State::Recording if app.paused => "recording is paused".into(),
        State::Recording => format!("recorded for {}", seconds(view.time_ns)),
        State::Quiet(seconds) => format!("nothing new for {seconds} s"),
        State::Over(reason) => reason.clone(),
    };
    let frozen = if app.frozen { " FROZEN " } else { "" };
    let width = usize::from(lines.area.width);
    let state = folded(&state, width * 2 / 3).into_owned();
    let name = format!("{} {}", view.pid, view.command);
    let used = columns(&state) + columns(frozen) + 2;
    let name = folded(&name, width.saturating_sub(used));
    let gap = " ".repeat(width.saturating_sub(columns(&name) + columns(&state) + columns(frozen)));
    lines.line(&[(&name, look.title), (&gap, look.title), (frozen, look.cursor), (&state, look.title)]);
    let View { totals, all, .. } = view;
    let about = if view.sampled { "about " } else { "" };
    let growth = grown(all.growth);
    let live = format!(
        "live {about}{} in {} ",
        human_bytes(totals.live_bytes),
        counted(totals.live_allocations, "block")
    );
    let peak = format!("  peak {} at {}", human_bytes(totals.peak_bytes), seconds(totals.peak_time_ns));
    lines.line(&[(&live, look.title), (&growth, growth_style(all.growth, look)), (&peak, Style::new())]);
    let rate = format!(
        "allocates {}B/s in {} calls/s   in all {} in {}",
        bytes(all.bytes_per_s),
        number(all.calls_per_s),
        human_bytes(totals.allocated_bytes),
        counted(totals.allocations.saturating_add(totals.reallocations), "call"),
    );
    let lost = match totals.lost_events {
        0 => String::new(),
        lost => format!("   {} lost", grouped(lost)),
    };
    lines.line(&[(&rate, Style::new()), (&lost, look.warning)]);
    if lines.area.height >= ROOM_FOR_TREND {
        let area = Rect { y: lines.area.y + lines.next, height: TREND, ..lines.area };
        let data = fitted(&view.trend, width);
        Sparkline::default().data(&data).style(look.faint).render(area, lines.buffer);
        lines.next += TREND;
    }
}

/// A time, in as few words as tell it.
fn seconds(ns: u64) -> String {
    match ns / 1_000_000_000 {
        0..60 => format!("{:.1} s", ns as f64 / 1e9),
        _ => duration(ns),
    }
}

fn growth_style(growth: i64, look: &Look) -> Style {
    match growth {
        0 => look.faint,
        1.. => look.grown,
        _ => look.shrunk,
    }
}

fn sites(lines: &mut Lines<'_>, app: &mut App, names: &mut Names, look: &Look) {
    let titles = [" GROWTH", "  LIVE", " BLOCKS", " BYTES/S", " CALLS/S"];
    let mut parts: Vec<(&str, Style)> = Vec::new();
    for (order, title) in Order::ALL.into_iter().zip(titles) {
        let name = title.trim_start();
        let style = if order == app.view.order { look.cursor } else { look.head };
        parts.extend([(&title[..title.len() - name.len()], look.head), (name, style)]);
    }
    parts.push(("   SITE", look.head));
    lines.line(&parts);
    let room = lines.room();
    app.room = room;
    let cursor = app.cursor();
    // The cursor is on the page, and the page full if it can be.
    let first = cursor.saturating_sub(room / 2).min(app.view.rows.len().saturating_sub(room));
    let width = usize::from(lines.area.width).saturating_sub(FIGURES);
    for (at, row) in app.view.rows.iter().enumerate().skip(first).take(room) {
        let figures = figures_of(&row.figures);
        let (growth, rest) = figures.split_at(7);
        let site = site(row, &app.view, names, width);
        lines.line(&[
            (growth, growth_style(row.figures.growth, look)),
            (rest, Style::new()),
            (&site, Style::new()),
        ]);
        if at == cursor {
            lines.style_last(look.cursor);
        }
    }
    if app.view.rows.is_empty() && room > 0 {
        lines.line(&[("nothing was allocated yet", look.faint)]);
    }
}

fn figures_of(figures: &Figures) -> String {
    format!(
        "{:>7}{:>6}{:>7}{:>8}{:>8}  ",
        grown(figures.growth),
        bytes(figures.live_bytes as f64),
        number(figures.live_blocks as f64),
        bytes(figures.bytes_per_s),
        number(figures.calls_per_s),
    )
}

/// The functions of a site, the innermost first, as far as there is room.
fn site(row: &Row, view: &View, names: &mut Names, width: usize) -> String {
    /// A name that is folded to less tells nothing.
    const LEAST: usize = 12;
    const BY: &str = " < ";
    if row.frames.is_empty() {
        return "(no stack is known)".into();
    }
    let mut text = String::new();
    for &frame in &row.frames {
        // What was inlined is small, and tells less than the function that it went into.
        let labels = names.labels(frame, &view.modules);
        let Some(label) = labels.last() else { continue };
        let left = width.saturating_sub(columns(&text));
        if !text.is_empty() && left < LEAST + BY.len() {
            break;
        }
        let name = if label.function == "??" { &label.place } else { &label.function };
        if !text.is_empty() {
            text.push_str(BY);
        }
        let left = width.saturating_sub(columns(&text));
        text.push_str(&abbreviated(name, left));
    }
    text
}

fn stack(lines: &mut Lines<'_>, app: &mut App, names: &mut Names, look: &Look) {
    let none = Drill::default();
    let drill = app.view.drill.as_ref().unwrap_or(&none);
    let Figures { live_bytes, live_blocks, growth, bytes_per_s, calls_per_s } = drill.row.figures;
    let about = format!(
        "this stack: live {} in {}, {}, {}B/s, {} calls/s",
        human_bytes(live_bytes),
        counted(live_blocks, "block"),
        grown(growth),
        bytes(bytes_per_s),
        number(calls_per_s),
    );
    lines.line(&[(&about, look.title)]);
    lines.line(&[(" GROWTH  LIVE   THROUGH THIS FRAME AND ITS CALLERS", look.head)]);
    app.room = lines.room();
    if drill.levels.is_empty() {
        lines.line(&[(
            "no stack is known: allocated before it was looked, or the stack could not be walked",
            look.faint,
        )]);
    }
    let width = usize::from(lines.area.width).saturating_sub(15);
    for level in drill.levels.iter().skip(app.level) {
        let figures = format!("{:>7}{:>6}", grown(level.growth), bytes(level.through as f64));
        for (at, label) in names.labels(level.frame, &app.view.modules).iter().enumerate() {
            let (growth, live) = if at == 0 { figures.split_at(7) } else { ("       ", "      ") };
            let (name, place) = named(label, level.guess, width);
            lines.line(&[
                (growth, growth_style(level.growth, look)),
                (live, Style::new()),
                ("  ", Style::new()),
                (&name, Style::new()),
                (" ", Style::new()),
                (&place, look.faint),
            ]);
        }
    }
    if drill.more > 0 {
        lines.line(&[(&format!("               and {} more frames", drill.more), look.faint)]);
    }
}

/// A frame's name and place. The name has most of the room.
fn named(label: &Label, guess: bool, width: usize) -> (String, String) {
    let mut marks = String::new();
    for (is_so, mark) in [(label.inlined, " (inlined)"), (guess, " (guess)")] {
        if is_so {
            marks.push_str(mark);
        }
    }
    let place = shortened(&label.place, width / 2);
    let place = folded(&place, width / 2);
    let left = width.saturating_sub(columns(&place) + columns(&marks) + 1);
    (format!("{}{marks}", abbreviated(&label.function, left)), place.into_owned())
}

/// A place in so many columns, if it can be: without directories, then without the module.
fn shortened(place: &str, width: usize) -> Cow<'_, str> {
    let Some((path, module)) = place.rsplit_once(" [").filter(|_| columns(place) > width) else {
        return place.into();
    };
    let file = path.rsplit('/').next().unwrap_or(path).trim_start_matches("at ");
    let with_module = format!("at {file} [{module}");
    if columns(&with_module) <= width { with_module.into() } else { format!("at {file}").into() }
}

fn status(lines: &mut Lines<'_>, app: &App, look: &Look) {
    if let Some(message) = app.message() {
        let message = folded(message, usize::from(lines.area.width)).into_owned();
        return lines.line(&[(&message, look.warning)]);
    }
    let View { base: (name, at), rows, sites, .. } = &app.view;
    let since = if *at == 0 {
        String::new()
    } else {
        format!(", {} ago", seconds(app.view.time_ns.saturating_sub(*at)))
    };
    let of = if *sites > rows.len() { format!("first {} of ", rows.len()) } else { String::new() };
    let text = format!("growth since {name}{since}   {of}{}", counted(*sites as u64, "site"));
    lines.line(&[(&text, look.faint)]);
}

fn keys(lines: &mut Lines<'_>, page: Page, look: &Look) {
    let keys: &[(&str, &str)] = match page {
        Page::Sites => &[
            ("?", "help"),
            ("q", "quit"),
            ("Enter", "stack"),
            ("s", "sort"),
            ("m", "mark"),
            ("Space", "freeze"),
            ("w", "snapshot"),
            ("p", "pause"),
        ],
        Page::Stack => &[
            ("?", "help"),
            ("q", "quit"),
            ("Esc", "back"),
            ("m", "mark"),
            ("Space", "freeze"),
            ("w", "snapshot"),
        ],
        Page::Help => &[("any key", "back"), ("q", "quit")],
    };
    let mut parts = Vec::new();
    for (key, what) in keys {
        parts.extend([(*key, look.cursor), (" ", Style::new()), (*what, Style::new()), ("  ", Style::new())]);
    }
    lines.line(&parts);
}

const HELP: &str = "\
Up Down k j        choose a site; PgUp PgDn Home End too
Enter              its stack, with what is live through each frame; Esc leads back
s                  sort by growth, live bytes, live blocks, bytes/s, calls/s
m                  mark this moment in the trace, and count growth from it
c                  count growth from the recording's beginning
Space              freeze what is shown; the recording goes on
w                  write a snapshot of the trace into the current directory
p                  pause the recording, or have it go on
Ctrl-L             draw anew
Ctrl-Z             stop for a while; fg leads back
q                  quit; the recording goes on

GROWTH   what the live bytes have grown by since the moment below
LIVE     bytes and BLOCKS that are allocated and not freed
/S       allocated in a second, on average over the last second or two
SITE     functions of a stack that allocates, the innermost first";

fn help(lines: &mut Lines<'_>, look: &Look) {
    lines.line(&[("grapnel top", look.title)]);
    lines.line(&[]);
    for text in HELP.lines() {
        lines.line(&[(text, Style::new())]);
    }
}

#[cfg(test)]
mod tests;
