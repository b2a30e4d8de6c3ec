//! Suppressions in the syntax of LeakSanitizer's files: leaks that are known, or not the program's own.
//!
//! A line is `leak:PATTERN`, empty, or a comment after `#`. A pattern is looked for in the function, the source file and
//! the module of each frame, as their names are shown: anywhere in them, unless it begins with `^` or ends with `$`; `*`
//! stands for any characters.

use crate::Analysis;
use crate::export::stack::frames;
use crate::sites::Site;
use crate::symbols::Symbols;
use std::collections::HashMap;

/// More than anybody writes.
const MAX_PATTERNS: usize = 1 << 16;

/// Why a file of suppressions is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuppressionError {
    /// A line that is no suppression of leaks.
    #[error("line {line} is not `leak:PATTERN`: {text}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// A line whose text can't be read.
    #[error("line {line} is not UTF-8: its byte {at} is {byte:#04x}; save the file as UTF-8")]
    Encoding {
        /// Its number, from 1.
        line: usize,
        /// The byte's place in it, from 1.
        at: usize,
        /// The byte.
        byte: u8,
    },
    /// The whole file is text in another form.
    #[error("it is UTF-16: save it as UTF-8")]
    Utf16,
    /// There are too many.
    #[error("it has more than {limit} suppressions")]
    TooMany {
        /// How many are kept.
        limit: usize,
    },
}

/// What names match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    /// Between the asterisks.
    parts: Vec<String>,
    from_start: bool,
    to_end: bool,
}

impl Pattern {
    /// A pattern in LeakSanitizer's syntax.
    pub fn new(text: &str) -> Self {
        let body = text.strip_prefix('^').unwrap_or(text);
        let (from_start, rest) = (body.len() < text.len(), body);
        let body = rest.strip_suffix('$').unwrap_or(rest);
        let parts = body.split('*').map(str::to_owned).collect();
        Self { text: text.to_owned(), parts, from_start, to_end: body.len() < rest.len() }
    }

    /// A pattern for the whole of a name; only asterisks have a meaning.
    pub fn whole(text: &str) -> Self {
        let parts = text.split('*').map(str::to_owned).collect();
        Self { text: text.to_owned(), parts, from_start: true, to_end: true }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a name matches. An empty one never does.
    pub fn matches(&self, name: &str) -> bool {
        if name.is_empty() {
            return false;
        }
        let mut rest = name;
        let last = self.parts.len() - 1;
        for (at, part) in self.parts.iter().enumerate() {
            let is_first = at == 0 && self.from_start;
            if at == last && self.to_end {
                return if is_first { rest == part } else { rest.ends_with(part.as_str()) };
            }
            let found = if is_first {
                rest.strip_prefix(part.as_str())
            } else {
                rest.split_once(part.as_str()).map(|(_, rest)| rest)
            };
            let Some(behind) = found else { return false };
            rest = behind;
        }
        true
    }
}

/// A file of suppressions, and what each has suppressed.
#[derive(Clone, Debug, Default)]
pub struct Suppressions {
    patterns: Vec<Pattern>,
    used: Vec<(u64, u64)>,
    /// Which pattern, if any, each stack matches.
    known: HashMap<u32, Option<usize>>,
}

impl Suppressions {
    /// Reads a file: UTF-8, with or without a mark at its start that says so. What is a comment may be anything.
    ///
    /// # Errors
    /// When a line is something else.
    pub fn parse(file: impl AsRef<[u8]>) -> Result<Self, SuppressionError> {
        let file = file.as_ref();
        if file.starts_with(b"\xff\xfe") || file.starts_with(b"\xfe\xff") {
            return Err(SuppressionError::Utf16);
        }
        let text = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
        let mut patterns = Vec::new();
        for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            if line.trim_ascii_start().starts_with(b"#") {
                continue;
            }
            let line = str::from_utf8(line).map_err(|error| {
                let at = error.valid_up_to();
                SuppressionError::Encoding { line: number, at: at + 1, byte: line[at] }
            })?;
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let Some(pattern) = line.strip_prefix("leak:").filter(|pattern| !pattern.is_empty()) else {
                return Err(SuppressionError::Line { line: number, text: line.chars().take(80).collect() });
            };
            if patterns.len() >= MAX_PATTERNS {
                return Err(SuppressionError::TooMany { limit: MAX_PATTERNS });
            }
            patterns.push(Pattern::new(pattern));
        }
        let used = vec![(0, 0); patterns.len()];
        Ok(Self { patterns, used, known: HashMap::new() })
    }

    /// Whether what is live of a site is suppressed, which is noted.
    pub fn suppress(&mut self, analysis: &Analysis, symbols: &mut Symbols<'_>, site: &Site) -> bool {
        self.suppress_stack(analysis, symbols, site.stack, site.live_allocations, site.live_bytes)
    }

    /// As [`Suppressions::suppress`], of so many blocks and bytes of a stack.
    pub fn suppress_stack(
        &mut self,
        analysis: &Analysis,
        symbols: &mut Symbols<'_>,
        stack: u32,
        more_blocks: u64,
        more_bytes: u64,
    ) -> bool {
        if self.patterns.is_empty() {
            return false;
        }
        let pattern = match self.known.get(&stack) {
            Some(&known) => known,
            None => {
                let found = self.find(analysis, symbols, stack);
                self.known.insert(stack, found);
                found
            }
        };
        if let Some(at) = pattern {
            let (blocks, bytes) = &mut self.used[at];
            *blocks = blocks.saturating_add(more_blocks);
            *bytes = bytes.saturating_add(more_bytes);
        }
        pattern.is_some()
    }

    fn find(&self, analysis: &Analysis, symbols: &mut Symbols<'_>, stack: u32) -> Option<usize> {
        let mut first: Option<usize> = None;
        frames(analysis, symbols, stack, |node, frame| {
            let module = analysis.modules.get(node.module);
            let module = module.map(|module| String::from_utf8_lossy(&module.path));
            let names = [Some(&*frame.name), frame.file, module.as_deref()];
            let matches = |pattern: &Pattern| names.iter().flatten().any(|name| pattern.matches(name));
            let before = first.unwrap_or(self.patterns.len());
            first = self.patterns[..before].iter().position(matches).or(first);
        });
        first
    }

    /// What suppressed anything: its pattern, and of how many blocks with how many bytes.
    pub fn used(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        let all = self.patterns.iter().zip(&self.used);
        all.filter(|(_, used)| **used != (0, 0))
            .map(|(pattern, &(blocks, bytes))| (pattern.text(), blocks, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_leak_sanitizers() {
        for (pattern, name, expected) in [
            ("grow", "store::grow(long)", true),
            ("^grow", "store::grow(long)", false),
            ("^store::*(long)$", "store::grow(long)", true),
            ("^store$", "store::grow", false),
            ("^store$", "store", true),
            ("grow$", "regrow", true),
            ("a*b*c", "xxaxbxcx", true),
            ("a*b*c", "xxaxcxbx", false),
            ("a*a$", "a", false),
            ("a*b$", "abab", true),
            ("^*$", "anything", true),
            ("*", "x", true),
            ("*", "", false),
            ("libc.so", "/lib/libc.so.6", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), expected, "{pattern} {name}");
        }
        assert!(
            Pattern::whole("parse*").matches("parse_int") && !Pattern::whole("parse").matches("parse_int")
        );
    }

    #[test]
    fn what_is_no_suppression_is_refused_with_its_line() {
        assert!(Suppressions::parse("# known\n\n  leak:foo\nleak:^bar$\r\n").is_ok());
        for (text, line) in [("leak:a\nrace:b", 2), ("leak:", 1), ("\nfoo", 2)] {
            let error = Suppressions::parse(text).unwrap_err();
            assert!(matches!(error, SuppressionError::Line { line: found, .. } if found == line), "{error}");
        }
        let bad = Suppressions::parse(b"# M\xfcller\nleak:a\n\xef\xbb\xbf leak:b\nleak:M\xfc").unwrap_err();
        assert!(matches!(bad, SuppressionError::Line { line: 3, .. }), "a mark in the middle: {bad}");
        let bad = Suppressions::parse(b"# M\xfcller\nleak:a\nleak:M\xfc\n").unwrap_err();
        assert_eq!(bad, SuppressionError::Encoding { line: 3, at: 7, byte: 0xfc });
        assert!(bad.to_string().contains("line 3") && bad.to_string().contains("byte 7 is 0xfc"), "{bad}");
        let bad = Suppressions::parse(b"\xff\xfel\0e\0").unwrap_err();
        assert_eq!(bad, SuppressionError::Utf16);
        let marked = Suppressions::parse("\u{feff}leak:a\n").unwrap();
        assert_eq!(marked.patterns, [Pattern::new("a")]);
        let many = "leak:x\n".repeat(MAX_PATTERNS + 1);
        assert_eq!(
            Suppressions::parse(&many).unwrap_err(),
            SuppressionError::TooMany { limit: MAX_PATTERNS }
        );
    }
}
