//! Answers for people: both codes side by side.

use std::io::Write;

use grapnel_arch::{Line, listing};
use grapnel_relocator::{CodeAddr, Error, Isa, MAX_MIN_LEN, Relocated};

use crate::{
    Answer, BadRequest, Request,
    columns::{Cell, Row, list, paragraph, table},
};

/// The longest instruction of all sets, in bytes.
const MAX_INST_LEN: usize = 15;

/// Appends the answer to `request`.
pub(crate) fn answer(request: &Request<'_>, answer: &Result<Answer, Error>, width: usize, out: &mut Vec<u8>) {
    // Writing text to memory can't fail.
    let _ = match answer {
        Ok(answer) => accepted(request, answer, width, out),
        Err(error) => refused(request, error, width, out),
    };
}

/// Appends the answer to a line that is no request.
pub(crate) fn bad(number: u64, bad: &BadRequest, width: usize, out: &mut Vec<u8>) {
    // Foreign text must not move a terminal's cursor or the direction of writing.
    let text: String = bad.to_string().chars().map(|c| if harmful(c) { '\u{fffd}' } else { c }).collect();
    // Writing text to memory can't fail.
    let _ = writeln!(out, "line {number}: no request").and_then(|()| notes_below(&[text], width, out));
}

fn harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn accepted(request: &Request<'_>, answer: &Answer, width: usize, out: &mut Vec<u8>) -> std::io::Result<()> {
    let Request { isa, from, to, .. } = request;
    let Answer { consumed, relocated, .. } = answer;
    writeln!(out, "{isa}: {consumed} bytes at {from} become {} bytes at {to}\n", relocated.bytes().len())?;
    table(&rows(request, answer), width, out)?;
    let behind = from.add(*consumed as u64);
    let mut notes = vec![match relocated.resumes() {
        true => format!("resumes at {behind}"),
        false => "never resumes: nothing falls out of the window's end".to_owned(),
    }];
    notes.push(match relocated.clobbers() {
        none if none.is_empty() => "clobbers no register".to_owned(),
        some => format!("clobbers {some}, dead wherever it leaves"),
    });
    if !relocated.landing_pads().is_empty() {
        let pads: Vec<String> = relocated.landing_pads().iter().map(CodeAddr::to_string).collect();
        let pads = pads.join(", ");
        // A32 and T32 have no guarded pages.
        let guard = match isa {
            Isa::X86_64 | Isa::Aarch64 => ": landing pads must be there if the page is guarded",
            Isa::A32 | Isa::T32 => "",
        };
        notes.push(format!("goes indirectly to {pads}{guard}"));
    }
    notes_below(&notes, width, out)
}

fn notes_below(notes: &[String], width: usize, out: &mut Vec<u8>) -> std::io::Result<()> {
    writeln!(out)?;
    for note in notes {
        paragraph(note, width, out)?;
    }
    writeln!(out)
}

/// Each instruction of the window beside what it became; behind them the jump back and the literals.
fn rows<'a>(request: &'a Request<'_>, answer: &'a Answer) -> Vec<Row<'a>> {
    let Answer { consumed, code_len, relocated } = answer;
    let source = cells(request.isa, request.from, &request.bytes[..*code_len]);
    let mut left: Vec<Cell<'_>> = source;
    if consumed > code_len {
        let padding = &request.bytes[*code_len..*consumed];
        left.push(Cell { offset: *code_len, bytes: padding, text: "padding".to_owned() });
    }
    if relocated.resumes() {
        left.push(Cell { offset: *consumed, bytes: &[], text: "(what follows)".to_owned() });
    }

    let (code, _) = relocated.bytes().split_at(relocated.map().code_len());
    let mut right = cells(request.isa, request.to, code).into_iter().peekable();
    let mut starts: Vec<usize> =
        left.iter().skip(1).filter_map(|cell| relocated.map().to_relocated(cell.offset)).collect();
    starts.push(code.len());
    let mut starts = starts.into_iter();

    let mut rows = Vec::new();
    for cell in left {
        let end = match relocated.map().to_relocated(cell.offset) {
            Some(_) => starts.next().unwrap_or(code.len()),
            None => 0,
        };
        rows.push(Row { left: Some(cell), right: right.next_if(|line| line.offset < end) });
        while let Some(more) = right.next_if(|line| line.offset < end) {
            rows.push(Row { left: None, right: Some(more) });
        }
    }
    rows.extend(right.map(|more| Row { left: None, right: Some(more) }));
    rows.extend(data(request.isa, relocated).map(|more| Row { left: None, right: Some(more) }));
    rows
}

fn cells(isa: Isa, at: CodeAddr, bytes: &[u8]) -> Vec<Cell<'_>> {
    let cell = |Line { offset, len, text }| Cell { offset, bytes: &bytes[offset..offset + len], text };
    listing(isa, at, bytes).into_iter().map(cell).collect()
}

/// What is behind the code: padding, and literals of a pointer's size.
fn data(isa: Isa, relocated: &Relocated) -> impl Iterator<Item = Cell<'_>> {
    let (bytes, literals) = (relocated.bytes(), relocated.literals());
    let (code_len, literals_at) = (relocated.map().code_len(), bytes.len() - literals.len());
    let padding = &bytes[code_len..literals_at];
    let size = match isa {
        Isa::X86_64 | Isa::Aarch64 => 8,
        Isa::A32 | Isa::T32 => 4,
    };
    let padding =
        (!padding.is_empty()).then(|| Cell { offset: code_len, bytes: padding, text: "padding".to_owned() });
    padding.into_iter().chain(literals.chunks(size).enumerate().map(move |(number, bytes)| {
        let value = bytes.iter().rev().fold(0, |value: u64, &byte| value << 8 | u64::from(byte));
        Cell { offset: literals_at + number * size, bytes, text: format!("data {value:#x}") }
    }))
}

fn refused(request: &Request<'_>, error: &Error, width: usize, out: &mut Vec<u8>) -> std::io::Result<()> {
    let Request { isa, from, to, min_len, .. } = request;
    writeln!(out, "{isa}: at least {min_len} bytes at {from}, to {to}\n  refused: {}\n", error.kind())?;
    let seen = &request.bytes[..request.bytes.len().min(MAX_MIN_LEN + MAX_INST_LEN)];
    let at = error.at().offset_within(*from, seen.len() as u64);
    // As much as the window has; what the error is about may lie behind it.
    let end = at.map_or(0, |at| at as usize + 1).max((*min_len).min(MAX_MIN_LEN));
    let mut before = cells(*isa, *from, seen);
    before.retain(|cell| cell.offset < end);
    // A length that is refused is no instruction's fault.
    let at = at.filter(|_| !matches!(error, Error::WindowTooLong { .. }));
    list(&before, at.map(|at| at as usize), width, out)?;
    notes_below(&[error.to_string(), format!("remedy: {}", error.remedy())], width, out)
}
