//! A relocation as a text file: what goes in, and what must come out.
//!
//! ```text
//! # What it shows.
//! isa: x86_64
//! from: 0x7f0000001000
//! to: 0x7f0000100000
//! min_len: 5
//!
//! source:
//!   55                             | push rbp
//!   ...
//!
//! accepted: 5 bytes, resumes
//!   55                             | push rbp
//!   ...
//! map: 0=0 1=1 4=4 5=5
//! ```
//!
//! `extent: N` gives the function's length and has its flow checked too, `padding: allowed` lets the window use padding,
//! `entry: no` says that the window is not at a function's entry.
//! Only the hex left of `|` is read from `source`; all else is written by [`Case::render`].

use std::{
    fmt::Write,
    iter::Peekable,
    num::ParseIntError,
    str::{FromStr, Lines},
};

use grapnel_arch::{Line, UnknownIsa};
use grapnel_relocator::{
    CodeAddr, Error, Isa, PcMap, Relocated, RelocationPlan, Window, WindowOptions,
    flow::{self, Reason, Verdict},
};

/// A window to relocate, and where to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// What it shows, a line each, without the `#`.
    pub about: Vec<String>,
    /// The instruction set.
    pub isa: Isa,
    /// The window's address.
    pub from: CodeAddr,
    /// The destination.
    pub to: CodeAddr,
    /// How long the window must be.
    pub min_len: usize,
    /// The function's extent, and whether padding may be used.
    pub options: WindowOptions,
    /// The bytes at `from`, past the window's end.
    pub source: Vec<u8>,
}

/// Why a text is no case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// A line in the header is no `key: value` of a known key.
    #[error("no such header line: {0}")]
    Header(String),
    /// A header line that must be there is not.
    #[error("there is no line `{0}: ...`")]
    Missing(&'static str),
    /// A number is none.
    #[error("`{text}` is no number: {error}")]
    Number {
        /// What is there.
        text: String,
        /// What is wrong with it.
        error: ParseIntError,
    },
    /// The instruction set is not known.
    #[error(transparent)]
    Isa(#[from] UnknownIsa),
}

impl FromStr for Case {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut lines = text.lines().peekable();
        let mut about = Vec::new();
        while let Some(line) = lines.next_if(|line| line.starts_with('#')) {
            about.push(line.trim_start_matches('#').trim().to_owned());
        }
        let (mut isa, mut from, mut to, mut min_len) = (None, None, None, None);
        let mut options = WindowOptions::default();
        for line in lines.by_ref() {
            match line.split_once(':').map(|(key, value)| (key.trim(), value.trim())) {
                None if line.trim().is_empty() => {}
                Some(("isa", value)) => isa = Some(value.parse()?),
                Some(("from", value)) => from = Some(CodeAddr(number(value)?)),
                Some(("to", value)) => to = Some(CodeAddr(number(value)?)),
                Some(("min_len", value)) => min_len = Some(number(value)? as usize),
                Some(("extent", value)) => options.extent = Some(number(value)? as usize),
                Some(("padding", "allowed")) => options.allow_padding = true,
                Some(("entry", "no")) => options.entry = false,
                Some(("shadow_stack", "yes")) => options.shadow_stack = true,
                Some(("source", "")) => break,
                _ => return Err(ParseError::Header(line.to_owned())),
            }
        }
        Ok(Self {
            about,
            isa: isa.ok_or(ParseError::Missing("isa"))?,
            from: from.ok_or(ParseError::Missing("from"))?,
            to: to.ok_or(ParseError::Missing("to"))?,
            min_len: min_len.ok_or(ParseError::Missing("min_len"))?,
            options,
            source: source(&mut lines)?,
        })
    }
}

fn number(text: &str) -> Result<u64, ParseError> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| ParseError::Number { text: text.to_owned(), error })
}

fn source(lines: &mut Peekable<Lines<'_>>) -> Result<Vec<u8>, ParseError> {
    let mut bytes = Vec::new();
    while let Some(line) = lines.next_if(|line| line.starts_with(' ')) {
        let hex = line.split('|').next().unwrap_or_default();
        for text in hex.split_whitespace() {
            let byte = u8::from_str_radix(text, 16)
                .map_err(|error| ParseError::Number { text: text.to_owned(), error })?;
            bytes.push(byte);
        }
    }
    Ok(bytes)
}

impl Case {
    /// Decodes the window and relocates it.
    ///
    /// # Errors
    ///
    /// The relocator's refusal.
    pub fn relocate(&self) -> Result<(Window, Relocated), Error> {
        let window = Window::decode_with(self.isa, self.from, &self.source, self.min_len, self.options)?;
        let relocated = RelocationPlan::new(&window)?.emit(self.to)?;
        Ok((window, relocated))
    }

    /// The case as a file, with what comes out now.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        for line in &self.about {
            let _ = writeln!(out, "# {line}");
        }
        let _ = writeln!(
            out,
            "isa: {}\nfrom: {}\nto: {}\nmin_len: {}",
            self.isa, self.from, self.to, self.min_len
        );
        if let Some(extent) = self.options.extent {
            let _ = writeln!(out, "extent: {extent}");
        }
        if self.options.allow_padding {
            let _ = writeln!(out, "padding: allowed");
        }
        if !self.options.entry {
            let _ = writeln!(out, "entry: no");
        }
        if self.options.shadow_stack {
            let _ = writeln!(out, "shadow_stack: yes");
        }
        let _ = writeln!(out, "\nsource:\n{}", listing(self.isa, self.from, &self.source));
        match self.relocate() {
            Ok((window, relocated)) => {
                let ends = if relocated.resumes() { "resumes" } else { "ends" };
                let _ = writeln!(out, "accepted: {} bytes, {ends}", window.len());
                out.push_str(&code(self.isa, self.to, &relocated));
                let _ = writeln!(out, "map:{}", map(relocated.map()));
                if !relocated.clobbers().is_empty() {
                    let _ = writeln!(out, "clobbers: {}", relocated.clobbers());
                }
                if !relocated.landing_pads().is_empty() {
                    let _ = writeln!(out, "landing pads: {}", addresses(relocated.landing_pads()));
                }
            }
            Err(error) => {
                let _ = writeln!(out, "refused: {}\n  {error}\n  {}", error.kind(), error.remedy());
            }
        }
        if let Some(function) = self.options.extent.and_then(|extent| self.source.get(..extent)) {
            let window_len = self.relocate().map_or(self.min_len, |(window, _)| window.len());
            let _ =
                writeln!(out, "flow: {}", verdict(&flow::check(self.isa, function, self.from, window_len)));
        }
        out
    }
}

fn map(map: &PcMap) -> String {
    map.iter().fold(String::new(), |mut out, (from, to)| {
        let _ = write!(out, " {from}={to}");
        out
    })
}

fn addresses(addresses: &[CodeAddr]) -> String {
    addresses.iter().map(CodeAddr::to_string).collect::<Vec<_>>().join(" ")
}

fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Proven => "proven".to_owned(),
        Verdict::Refused(branch) => format!("refused, {branch}"),
        Verdict::Assumed(Reason::IndirectJump(jump)) => format!("assumed, indirect jump: {jump}"),
        Verdict::Assumed(Reason::LoopsToStart(branch)) => format!("assumed, loops to the start: {branch}"),
        Verdict::Assumed(Reason::Unreached(at)) => format!("assumed, unreached code at {at}"),
        Verdict::Assumed(Reason::Undecodable(at)) => format!("assumed, no code at {at}"),
        _ => "unknown".to_owned(),
    }
}

fn code(isa: Isa, to: CodeAddr, relocated: &Relocated) -> String {
    let (code, behind) = relocated.bytes().split_at(relocated.map().code_len());
    let mut out = listing(isa, to, code);
    let padding = behind.len() - relocated.literals().len();
    if padding > 0 {
        line(&mut out, &behind[..padding], "padding");
    }
    let word = if matches!(isa, Isa::A32 | Isa::T32) { 4 } else { 8 };
    for literal in relocated.literals().chunks(word) {
        let value = literal.iter().rev().fold(0, |value: u64, &byte| value << 8 | u64::from(byte));
        line(&mut out, literal, &format!("{value:#x}"));
    }
    out
}

/// A line per instruction; what is none is one line.
fn listing(isa: Isa, addr: CodeAddr, bytes: &[u8]) -> String {
    let mut out = String::new();
    for Line { offset, len, text } in grapnel_arch::listing(isa, addr, bytes) {
        line(&mut out, &bytes[offset..offset + len], &text);
    }
    out
}

fn line(out: &mut String, bytes: &[u8], text: &str) {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let _ = writeln!(out, "  {:<30} | {text}", hex.join(" "));
}
