//! Why a line is no request.

use grapnel_relocator::Isa;

/// What is wrong with a request, before the relocator sees it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadRequest {
    /// It is longer than any line that is read.
    #[error("the line is longer than {max} bytes")]
    LineTooLong {
        /// The longest that is read.
        max: usize,
    },
    /// It is no JSON, or JSON of another form.
    #[error("{what}, at column {column}")]
    Json {
        /// What is wrong.
        what: String,
        /// Where, counted from 1.
        column: usize,
    },
    /// It does not begin as a JSON object.
    #[error("the line is no JSON object, which would begin with {{")]
    NotAnObject,
    /// A field holds something of another type.
    #[error("`{field}` is {found}, not {expected}")]
    WrongType {
        /// The field.
        field: &'static str,
        /// What it holds.
        found: &'static str,
        /// What it should.
        expected: &'static str,
    },
    /// No such instruction set.
    #[error("`isa` is `{found}`; the known ones are x86_64, aarch64, a32 and t32")]
    UnknownIsa {
        /// What the field holds, cut short.
        found: String,
    },
    /// A number is none, or none that fits.
    #[error("`{field}` is `{found}`, not a whole number from 0 to 2^64-1, in decimal or behind 0x")]
    Number {
        /// The field.
        field: &'static str,
        /// What the field holds, cut short.
        found: String,
    },
    /// A window of no bytes.
    #[error("`min_len` is 0, and a window has at least one byte")]
    NoLength,
    /// There is no code.
    #[error("`bytes` is empty")]
    NoBytes,
    /// Half a byte is left over.
    #[error("`bytes` has {digits} hex digits, an odd number")]
    OddHex {
        /// How many.
        digits: usize,
    },
    /// A character is no hex digit.
    #[error("`bytes` has {found:?} at position {at}, which is no hex digit")]
    NotHex {
        /// What is there.
        found: char,
        /// Where in the text, in bytes from 0.
        at: usize,
    },
    /// An address at which the instruction set has no instruction.
    #[error("`{field}` is {value:#x}, not a multiple of {alignment} as {isa} code is")]
    Misaligned {
        /// The field.
        field: &'static str,
        /// The address.
        value: u64,
        /// The instruction set.
        isa: Isa,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// The bit that tells T32 from A32 is in an address.
    #[error("`{field}` is {value:#x}; bit 0, which says that a branch goes to T32 code, is left off here")]
    ThumbBit {
        /// The field.
        field: &'static str,
        /// The address.
        value: u64,
    },
    /// An address that a 32-bit instruction set can't have.
    #[error("`{field}` is {value:#x}, and addresses of {isa} have 32 bits")]
    Beyond32Bits {
        /// The field.
        field: &'static str,
        /// The address.
        value: u64,
        /// The instruction set.
        isa: Isa,
    },
}

impl BadRequest {
    /// The name of all of them, beside [`grapnel_relocator::Error::kind`].
    pub const KIND: &'static str = "bad-request";
}

/// The longest piece of a request that a message repeats, in characters.
const QUOTED: usize = 60;

/// The beginning of foreign text.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

impl From<serde_json::Error> for BadRequest {
    fn from(error: serde_json::Error) -> Self {
        let text = error.to_string();
        // The place is told apart, since the line's number is ours and not the parser's.
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        Self::Json { what: shortened(what), column: error.column() }
    }
}

/// Names of unknown fields are repeated by the parser, however long they are.
fn shortened(what: &str) -> String {
    const KEPT: usize = 160;
    let (Some((head, _)), Some((tail, _))) =
        (what.char_indices().nth(KEPT), what.char_indices().rev().nth(KEPT))
    else {
        return what.to_owned();
    };
    if tail <= head { what.to_owned() } else { format!("{} ... {}", &what[..head], &what[tail..]) }
}
