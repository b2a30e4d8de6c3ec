//! Why options are void, and what would be right.

use core::fmt;

/// Why options are void.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum OptionError<'a> {
    Unknown {
        name: &'a [u8],
    },
    /// Of bionic's allocator only.
    NotHere {
        name: &'a [u8],
    },
    TakesNoValue {
        name: &'a [u8],
        value: &'a [u8],
    },
    NeedsValue {
        name: &'a [u8],
    },
    NoNumber {
        name: &'a [u8],
        value: &'a [u8],
    },
    OutOfRange {
        name: &'a [u8],
        value: &'a [u8],
        least: usize,
        most: usize,
    },
}

impl fmt::Display for OptionError<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => {
                write!(
                    to,
                    "unknown option {}; docs/malloc-debug.md lists those that exist",
                    name.escape_ascii()
                )
            }
            Self::NotHere { name } => write!(
                to,
                "{}: the statistics of bionic's allocator can't be had from another; leave the option out",
                name.escape_ascii()
            ),
            Self::TakesNoValue { name, value } => write!(
                to,
                "{} takes no value, and has {}; write it without",
                name.escape_ascii(),
                value.escape_ascii()
            ),
            Self::NeedsValue { name } => {
                write!(to, "{0} needs a number of bytes; write {0}=BYTES", name.escape_ascii())
            }
            Self::NoNumber { name, value } => write!(
                to,
                "{}={} is no decimal number without a sign; give one",
                name.escape_ascii(),
                value.escape_ascii()
            ),
            Self::OutOfRange { name, value, least, most } => {
                write!(to, "{}={} must be from {least} to {most}", name.escape_ascii(), value.escape_ascii())
            }
        }
    }
}
