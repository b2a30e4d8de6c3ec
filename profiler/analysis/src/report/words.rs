//! Numbers, times and foreign text as people read them.

use core::fmt::Write;
use grapnel_trace::{Mapped, Source};
use std::borrow::Cow;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// `1536` as `1.5 KiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    // 1023.95 would be printed as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `1234567` as `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The functions that a block can come from, by the name of one of them.
pub fn source_name(source: Source) -> &'static str {
    match source {
        Source::Malloc => "malloc",
        Source::Calloc => "calloc",
        Source::Realloc => "realloc",
        Source::New => "new",
        Source::NewArray => "new[]",
        Source::Before => "before",
        // Whatever else: it has an alignment.
        _ => "aligned_alloc",
    }
}

/// What a mapping is of, in a word.
pub fn mapped_name(mapped: Mapped) -> &'static str {
    match mapped {
        Mapped::File => "file",
        Mapped::Break => "brk",
        Mapped::Segment => "shm",
        // Whatever else: no file is known.
        _ => "anonymous",
    }
}

/// `1 block`, `2,000 blocks`.
pub fn counted(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// Nanoseconds as `1.500 ms`, `2.50 s`, `3 min 5 s`, `2 h 0 min`.
pub fn duration(ns: u64) -> String {
    let s = ns / 1_000_000_000;
    match s {
        0 => format!("{:.3} ms", ns as f64 / 1e6),
        1..60 => format!("{:.2} s", ns as f64 / 1e9),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

/// `part` of `whole` as `12.3%`.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "0.0%".into() } else { format!("{:.1}%", 100.0 * part as f64 / whole as f64) }
}

/// Text of the target that can go to a terminal: what moves the cursor, sets colours or turns the direction
/// of writing is shown as an escape.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    if !text.chars().any(harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if harmful(c) => drop(write!(out, "\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// An argument as a shell would need it.
pub fn quoted(argument: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_alphanumeric() || "_-./=:,+@%^".contains(c);
    let text = harmless(argument);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''")).into()
    }
}

/// Columns that a text takes on a terminal.
pub fn columns(text: &str) -> usize {
    text.width()
}

/// The text, or when it is wider than `width`, its two ends with `…` between them.
pub fn folded(text: &str, width: usize) -> Cow<'_, str> {
    if columns(text) <= width {
        return Cow::Borrowed(text);
    }
    let room = width.saturating_sub(1);
    let front = take_columns(text.chars(), room.div_ceil(2));
    let back: String = take_columns(text.chars().rev(), room / 2).chars().rev().collect();
    // One mark where something was left out already.
    Cow::Owned(format!("{}…{}", front.trim_end_matches('…'), back.trim_start_matches('…')))
}

fn take_columns(chars: impl Iterator<Item = char>, mut room: usize) -> String {
    let mut out = String::new();
    for c in chars {
        let width = c.width().unwrap_or(0);
        if width > room {
            break;
        }
        room -= width;
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(human_bytes(u64::MAX), "16.0 EiB");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(counted(1, "block"), "1 block");
        assert_eq!(duration(1_500_000), "1.500 ms");
        assert_eq!(duration(185_000_000_000), "3 min 5 s");
        assert_eq!(duration(u64::MAX), "5124095 h 34 min");
        assert_eq!(share(1, 3), "33.3%");
        assert_eq!(share(0, 0), "0.0%");
    }

    #[test]
    fn foreign_text_cannot_drive_the_terminal() {
        assert_eq!(harmless("plain ünï"), "plain ünï");
        assert_eq!(harmless("a\x1b[31mb\n\u{9b}c\u{202e}"), "a\\u{1b}[31mb\\n\\u{9b}c\\u{202e}");
        assert_eq!(quoted("two words"), "'two words'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(folded("abcdefghij", 10), "abcdefghij");
        assert_eq!(folded("abcdefghij", 7), "abc…hij");
        assert_eq!(folded("abcdefghij", 0), "…");
        assert_eq!(folded("日本語日本語", 7), "日…語");
    }
}
