//! Code in columns that fit the width there is.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use data_encoding::HEXLOWER;
use textwrap::{Options, WordSplitter};

/// An instruction, or data.
pub(crate) struct Cell<'a> {
    /// Where it is, counted from the start of its side.
    pub(crate) offset: usize,
    /// Its bytes, shown where there is room.
    pub(crate) bytes: &'a [u8],
    /// It as text.
    pub(crate) text: String,
}

/// Two cells that belong together.
pub(crate) struct Row<'a> {
    /// Of the source.
    pub(crate) left: Option<Cell<'a>>,
    /// Of the relocated code.
    pub(crate) right: Option<Cell<'a>>,
}

/// What stands before the left side, and between both.
const MARGIN: &str = "  ";
const BETWEEN: &str = " | ";

/// A side is not made narrower than this, however narrow the terminal is.
const MIN_SIDE: usize = 16;

/// Writes both sides, with their bytes if that fits in `width`; texts that don't fit are broken.
pub(crate) fn table(rows: &[Row<'_>], width: usize, out: &mut impl Write) -> io::Result<()> {
    let lefts = || rows.iter().filter_map(|row| row.left.as_ref());
    let rights = || rows.iter().filter_map(|row| row.right.as_ref());
    let room = width.saturating_sub(MARGIN.len() + BETWEEN.len());
    let with_bytes = [Side::new(lefts(), true), Side::new(rights(), true)];
    let [mut left, mut right] = match with_bytes {
        [left, right] if left.len() + right.len() <= room => [left, right],
        _ => [Side::new(lefts(), false), Side::new(rights(), false)],
    };
    if left.len() + right.len() > room {
        // The narrower side keeps what it needs, if that is less than half.
        let half = room / 2;
        let side = if left.len() < half { left.len() } else { half.max(room.saturating_sub(right.len())) };
        left.narrow(side);
        right.narrow(room.saturating_sub(side));
    }
    for Row { left: source, right: relocated } in rows {
        let [source, relocated] = [left.lines(source.as_ref()), right.lines(relocated.as_ref())];
        for number in 0..source.len().max(relocated.len()) {
            let line = |lines: &[String]| lines.get(number).cloned().unwrap_or_default();
            let text = format!("{MARGIN}{:<2$}{BETWEEN}{}", line(&source), line(&relocated), left.len());
            writeln!(out, "{}", text.trim_end())?;
        }
    }
    Ok(())
}

/// Writes one side alone, with a mark before the cell at the offset `marked`.
pub(crate) fn list(
    cells: &[Cell<'_>],
    marked: Option<usize>,
    width: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let room = width.saturating_sub(MARGIN.len());
    let mut side = Side::new(cells.iter(), true);
    if side.len() > room {
        side = Side::new(cells.iter(), false);
        side.narrow(room);
    }
    for cell in cells {
        for (number, line) in side.lines(Some(cell)).iter().enumerate() {
            let mark = if marked == Some(cell.offset) && number == 0 { "> " } else { MARGIN };
            writeln!(out, "{mark}{}", line.trim_end())?;
        }
    }
    Ok(())
}

/// Writes a sentence, whose further lines are indented more.
pub(crate) fn paragraph(text: &str, width: usize, out: &mut impl Write) -> io::Result<()> {
    let room = width.saturating_sub(2 * MARGIN.len()).max(MIN_SIDE);
    for (number, line) in broken(text, room).into_iter().enumerate() {
        let indent = if number == 0 { "" } else { MARGIN };
        writeln!(out, "{MARGIN}{indent}{line}")?;
    }
    Ok(())
}

/// How wide the parts of one side are.
struct Side {
    offset: usize,
    /// 0 if the bytes are left out.
    bytes: usize,
    text: usize,
}

impl Side {
    fn new<'a>(cells: impl Iterator<Item = &'a Cell<'a>>, with_bytes: bool) -> Self {
        let mut side = Self { offset: 0, bytes: 0, text: 0 };
        for cell in cells {
            side.offset = side.offset.max(cell.offset.to_string().len());
            if with_bytes {
                side.bytes = side.bytes.max(cell.bytes.len() * 2);
            }
            side.text = side.text.max(cell.text.chars().count());
        }
        side
    }

    /// What stands before the text: the sign and the offset, the bytes, two spaces each.
    const fn indent(&self) -> usize {
        let bytes = if self.bytes == 0 { 0 } else { self.bytes + 2 };
        1 + self.offset + 2 + bytes
    }

    const fn len(&self) -> usize {
        self.indent() + self.text
    }

    fn narrow(&mut self, len: usize) {
        self.text = self.text.min(len.max(MIN_SIDE + self.indent()) - self.indent());
    }

    /// The lines of a cell, none longer than the side.
    fn lines(&self, cell: Option<&Cell<'_>>) -> Vec<String> {
        let Some(cell) = cell else { return Vec::new() };
        let mut first = format!("+{:<1$}  ", cell.offset, self.offset);
        if self.bytes > 0 {
            first += &format!("{:<1$}  ", HEXLOWER.encode(cell.bytes), self.bytes);
        }
        let mut lines = Vec::new();
        for (number, piece) in broken(&cell.text, self.text).into_iter().enumerate() {
            lines.push(if number == 0 {
                format!("{first}{piece}")
            } else {
                format!("{:1$}{piece}", "", self.indent())
            });
        }
        lines
    }
}

/// Text in pieces of at most `width` characters, broken at spaces where there are any.
fn broken(text: &str, width: usize) -> Vec<Cow<'_, str>> {
    textwrap::wrap(text, Options::new(width.max(1)).word_splitter(WordSplitter::NoHyphenation))
}

#[cfg(test)]
mod tests {
    use super::broken;

    #[test]
    fn text_is_broken_at_spaces() {
        assert_eq!(broken("mov rax, rbx", 12), ["mov rax, rbx"]);
        assert_eq!(broken("mov rax, rbx", 8), ["mov rax,", "rbx"]);
        assert_eq!(broken("mov rax, rbx", 10), ["mov rax,", "rbx"]);
        assert_eq!(broken("0x7f0000001000", 6), ["0x7f00", "000010", "00"]);
        assert_eq!(broken("", 6), [""]);
        assert_eq!(broken("ab", 0), ["a", "b"]);
    }
}
