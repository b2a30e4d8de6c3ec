//! What is answered.

use std::io::Write;

use grapnel_relocator::Error;

use crate::{BadRequest, Request, explain, hex, request::Answer};

/// How answers are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A line of JSON for each request.
    Json,
    /// Both codes side by side, for people.
    Text {
        /// How many columns there are.
        width: usize,
    },
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The window was relocated.
    Accepted,
    /// The relocator refused it, which is an answer.
    Refused,
    /// It was no request.
    Bad,
}

/// Answers requests one by one. Buffers are kept from one to the next.
#[derive(Debug)]
pub struct Answerer {
    form: Form,
    bytes: Vec<u8>,
}

impl Answerer {
    /// One that writes answers in this form.
    #[must_use]
    pub const fn new(form: Form) -> Self {
        Self { form, bytes: Vec::new() }
    }

    /// Appends the answer to the line with this number to `out`.
    pub fn line(&mut self, number: u64, line: &[u8], out: &mut Vec<u8>) -> Outcome {
        let mut bytes = std::mem::take(&mut self.bytes);
        let outcome = match Request::parse(line, &mut bytes) {
            Ok(request) => self.request(&request, out),
            Err(bad) => self.bad(number, &bad, out),
        };
        self.bytes = bytes;
        outcome
    }

    /// Appends the answer to a request to `out`.
    pub fn request(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Outcome {
        let answer = request.relocate();
        match self.form {
            Form::Json => match &answer {
                Ok(answer) => accepted(answer, out),
                Err(error) => refused(error, out),
            },
            Form::Text { width } => explain::answer(request, &answer, width, out),
        }
        if answer.is_ok() { Outcome::Accepted } else { Outcome::Refused }
    }

    /// Appends the answer to a line that is no request to `out`.
    pub fn bad(&self, number: u64, bad: &BadRequest, out: &mut Vec<u8>) -> Outcome {
        match self.form {
            Form::Json => {
                out.extend(br#"{"ok":false,"error":{"kind":"#);
                string(BadRequest::KIND, out);
                out.extend(br#","at":null,"instruction":null,"message":"#);
                string(&format!("line {number}: {bad}"), out);
                out.extend(br#","line":"#);
                decimal(number, out);
                out.extend(b"}}\n");
            }
            Form::Text { width } => explain::bad(number, bad, width, out),
        }
        Outcome::Bad
    }

    /// Gives the memory of an unusually long request back.
    pub(crate) fn shrink(&mut self, kept: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(kept);
    }
}

fn accepted(Answer { consumed, relocated, .. }: &Answer, out: &mut Vec<u8>) {
    out.extend(br#"{"ok":true,"consumed":"#);
    decimal(*consumed as u64, out);
    out.extend(br#","bytes":""#);
    hex::encode(relocated.bytes(), out);
    out.extend(br#"","map":["#);
    list(relocated.map().iter(), out, |(from, to), out| {
        out.push(b'[');
        decimal(from as u64, out);
        out.push(b',');
        decimal(to as u64, out);
        out.push(b']');
    });
    out.extend(br#"],"clobbers":["#);
    list(relocated.clobbers().names(), out, string);
    out.extend(br#"],"resumes":"#);
    out.extend(if relocated.resumes() { &b"true"[..] } else { b"false" });
    out.extend(br#","landing_pads":["#);
    list(relocated.landing_pads(), out, |pad, out| address(pad.0, out));
    out.extend(b"]}\n");
}

fn refused(error: &Error, out: &mut Vec<u8>) {
    out.extend(br#"{"ok":false,"error":{"kind":"#);
    string(error.kind(), out);
    out.extend(br#","at":"#);
    address(error.at().0, out);
    out.extend(br#","instruction":"#);
    match error.culprit() {
        Some(culprit) => string(&culprit.text, out),
        None => out.extend(b"null"),
    }
    out.extend(br#","message":"#);
    string(&error.to_string(), out);
    out.extend(br#","remedy":"#);
    string(error.remedy(), out);
    out.extend(b"}}\n");
}

/// Appends what `write` makes of each item, with commas between.
fn list<T>(items: impl IntoIterator<Item = T>, out: &mut Vec<u8>, write: impl Fn(T, &mut Vec<u8>)) {
    for (number, item) in items.into_iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        write(item, out);
    }
}

fn string(text: &str, out: &mut Vec<u8>) {
    // Writing text to memory can't fail.
    let _ = serde_json::to_writer(out, text);
}

fn address(value: u64, out: &mut Vec<u8>) {
    let _ = write!(out, "\"{value:#x}\"");
}

fn decimal(value: u64, out: &mut Vec<u8>) {
    match value {
        0..10 => out.push(b'0' + value as u8),
        10..100 => out.extend([b'0' + (value / 10) as u8, b'0' + (value % 10) as u8]),
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}
