//! What `LIBC_DEBUG_MALLOC_OPTIONS` asks for: names and limits are those of Android's malloc_debug.
//!
//! Options are separated by white space, and each is `NAME` or `NAME=VALUE`. One that is wrong makes all void, with a
//! sentence that says which and what would be right.

mod error;

pub(crate) use error::OptionError;

use alloc::vec::Vec;

const GUARD_BYTES: usize = 32;
const MOST_GUARD_BYTES: usize = 16384;
const FRAMES: usize = 16;
const MOST_FRAMES: usize = 256;
const EXPANSION: usize = 16;
const MOST_EXPANSION: usize = 16384;
const FREED: usize = 100;
const MOST_FREED: usize = 16384;
const RECORDS: usize = 8_000_000;
const MOST_RECORDS: usize = 50_000_000;
const DUMP_PREFIX: &[u8] = b"/data/local/tmp/backtrace_heap";
const RECORD_FILE: &[u8] = b"/data/local/tmp/record_allocs.txt";
/// What blocks are aligned to, and so the front guard's size.
pub(crate) const ALIGNMENT: usize = 2 * size_of::<usize>();

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Blocks have backtraces, at least from a signal on.
    pub(crate) backtrace: bool,
    /// They have them from the start.
    pub(crate) backtrace_at_start: bool,
    pub(crate) backtrace_on_signal: bool,
    pub(crate) frames: usize,
    pub(crate) dump_on_exit: bool,
    pub(crate) dump_prefix: Vec<u8>,
    /// Only blocks of these sizes have backtraces.
    pub(crate) sizes: (usize, usize),
    pub(crate) full: bool,
    /// Bytes of the guards, 0 for none.
    pub(crate) front_guard: usize,
    pub(crate) rear_guard: usize,
    /// How many bytes are filled, 0 for none.
    pub(crate) fill_on_alloc: usize,
    pub(crate) fill_on_free: usize,
    pub(crate) expand: usize,
    /// How many blocks that were freed are kept, 0 for none.
    pub(crate) freed: usize,
    pub(crate) freed_frames: usize,
    pub(crate) leak_track: bool,
    /// How many calls are recorded, 0 for none.
    pub(crate) records: usize,
    pub(crate) record_file: Vec<u8>,
    pub(crate) record_on_exit: bool,
    pub(crate) verify_pointers: bool,
    pub(crate) abort_on_error: bool,
    pub(crate) verbose: bool,
    pub(crate) check_unreachable: bool,
}

/// One option as it stands there.
#[derive(Clone, Copy)]
struct Given<'a> {
    name: &'a [u8],
    value: &'a [u8],
}

impl<'a> Given<'a> {
    fn empty(self) -> Result<(), OptionError<'a>> {
        match self.value {
            [] => Ok(()),
            value => Err(OptionError::TakesNoValue { name: self.name, value }),
        }
    }

    fn number(self, least: usize, most: usize) -> Result<usize, OptionError<'a>> {
        let Self { name, value } = self;
        if value.is_empty() {
            return Err(OptionError::NeedsValue { name });
        }
        if !value.iter().all(u8::is_ascii_digit) {
            return Err(OptionError::NoNumber { name, value });
        }
        let digit = |number: usize, digit: &u8| number.checked_mul(10)?.checked_add((digit - b'0').into());
        let number = value.iter().try_fold(0, digit).filter(|number| (least..=most).contains(number));
        number.ok_or(OptionError::OutOfRange { name, value, least, most })
    }

    fn number_or(self, default: usize, least: usize, most: usize) -> Result<usize, OptionError<'a>> {
        if self.value.is_empty() { Ok(default) } else { self.number(least, most) }
    }
}

/// White space of C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// The next option of a text, and what follows. White space may stand around the sign.
fn next(text: &[u8]) -> Option<(Given<'_>, &[u8])> {
    let text = skip(text, is_space);
    if text.is_empty() {
        return None;
    }
    let rest = skip(text, |byte| !is_space(byte) && byte != b'=');
    let name = &text[..text.len() - rest.len()];
    let rest = skip(rest, is_space);
    let Some(rest) = rest.strip_prefix(b"=") else { return Some((Given { name, value: b"" }, rest)) };
    let from = skip(rest, is_space);
    let rest = skip(from, |byte| !is_space(byte));
    Some((Given { name, value: &from[..from.len() - rest.len()] }, rest))
}

fn skip(text: &[u8], of: impl Fn(u8) -> bool) -> &[u8] {
    let len = text.iter().position(|&byte| !of(byte)).unwrap_or(text.len());
    &text[len..]
}

impl Options {
    /// Nothing asked for.
    pub(crate) fn none() -> Self {
        Self {
            backtrace: false,
            backtrace_at_start: false,
            backtrace_on_signal: false,
            frames: 0,
            dump_on_exit: false,
            dump_prefix: DUMP_PREFIX.to_vec(),
            sizes: (0, usize::MAX),
            full: false,
            front_guard: 0,
            rear_guard: 0,
            fill_on_alloc: 0,
            fill_on_free: 0,
            expand: 0,
            freed: 0,
            freed_frames: 0,
            leak_track: false,
            records: 0,
            record_file: RECORD_FILE.to_vec(),
            record_on_exit: false,
            verify_pointers: false,
            abort_on_error: false,
            verbose: false,
            check_unreachable: false,
        }
    }

    /// Reads the text of the variable.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, OptionError<'_>> {
        let mut options = Self { freed_frames: FRAMES, ..Self::none() };
        let mut text = text;
        while let Some((given, rest)) = next(text) {
            options.take(given)?;
            text = rest;
        }
        if options.freed == 0 {
            options.freed_frames = 0;
        }
        Ok(options)
    }

    fn take<'a>(&mut self, given: Given<'a>) -> Result<(), OptionError<'a>> {
        let front = |bytes: usize| bytes.next_multiple_of(ALIGNMENT);
        let guard = || given.number_or(GUARD_BYTES, 1, MOST_GUARD_BYTES);
        let fill = || given.number_or(usize::MAX, 1, usize::MAX);
        match given.name {
            b"guard" => {
                self.rear_guard = guard()?;
                self.front_guard = front(self.rear_guard);
            }
            b"front_guard" => self.front_guard = front(guard()?),
            b"rear_guard" => self.rear_guard = guard()?,
            b"backtrace" | b"bt" => {
                (self.backtrace, self.backtrace_at_start) = (true, true);
                self.frames = given.number_or(FRAMES, 1, MOST_FRAMES)?;
            }
            b"backtrace_enable_on_signal" | b"bt_en_on_sig" => {
                (self.backtrace, self.backtrace_on_signal) = (true, true);
                self.frames = given.number_or(FRAMES, 1, MOST_FRAMES)?;
            }
            b"backtrace_dump_on_exit" | b"bt_dmp_on_ex" => {
                given.empty()?;
                self.dump_on_exit = true;
            }
            b"backtrace_dump_prefix" | b"bt_dmp_pre" => {
                self.dump_prefix = text_or(given.value, DUMP_PREFIX);
            }
            b"backtrace_size" | b"bt_sz" => {
                let size = given.number(1, usize::MAX)?;
                self.sizes = (size, size);
            }
            b"backtrace_min_size" | b"bt_min_sz" => self.sizes.0 = given.number(1, usize::MAX)?,
            b"backtrace_max_size" | b"bt_max_sz" => self.sizes.1 = given.number(1, usize::MAX)?,
            b"backtrace_full" | b"bt_full" => {
                given.empty()?;
                self.full = true;
            }
            b"fill" => {
                self.fill_on_alloc = fill()?;
                self.fill_on_free = self.fill_on_alloc;
            }
            b"fill_on_alloc" => self.fill_on_alloc = fill()?,
            b"fill_on_free" => self.fill_on_free = fill()?,
            b"expand_alloc" => self.expand = given.number_or(EXPANSION, 1, MOST_EXPANSION)?,
            b"free_track" => {
                self.freed = given.number_or(FREED, 1, MOST_FREED)?;
                if self.fill_on_free == 0 {
                    self.fill_on_free = usize::MAX;
                }
            }
            b"free_track_backtrace_num_frames" => {
                self.freed_frames = given.number_or(FRAMES, 0, MOST_FRAMES)?;
            }
            b"leak_track" => {
                given.empty()?;
                self.leak_track = true;
            }
            b"record_allocs" => self.records = given.number_or(RECORDS, 1, MOST_RECORDS)?,
            b"record_allocs_file" => self.record_file = text_or(given.value, RECORD_FILE),
            b"record_allocs_on_exit" => {
                given.empty()?;
                self.record_on_exit = true;
            }
            b"verify_pointers" => {
                given.empty()?;
                self.verify_pointers = true;
            }
            b"abort_on_error" => {
                given.empty()?;
                self.abort_on_error = true;
            }
            b"verbose" => {
                given.empty()?;
                self.verbose = true;
            }
            b"check_unreachable_on_signal" => {
                given.empty()?;
                self.check_unreachable = true;
            }
            name @ (b"log_allocator_stats_on_signal" | b"log_allocator_stats_on_exit") => {
                return Err(OptionError::NotHere { name });
            }
            name => return Err(OptionError::Unknown { name }),
        }
        Ok(())
    }

    /// Whether the live blocks are kept in a table, and pointers that are in none are errors.
    pub(crate) fn tracks(&self) -> bool {
        self.backtrace
            || self.guards()
            || self.freed != 0
            || self.leak_track
            || self.verify_pointers
            || self.check_unreachable
    }

    /// Whether something lies around the blocks.
    pub(crate) fn guards(&self) -> bool {
        self.front_guard != 0 || self.rear_guard != 0
    }

    /// The bytes that lie around a block.
    pub(crate) fn extra(&self) -> usize {
        self.front_guard + self.rear_guard + self.expand
    }
}

fn text_or(text: &[u8], default: &[u8]) -> Vec<u8> {
    if text.is_empty() { default.to_vec() } else { text.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Options {
        Options::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn each_option_has_its_default_and_its_value() {
        let of = |change: fn(&mut Options)| {
            let mut options = Options::none();
            change(&mut options);
            options
        };
        let cases: [(&str, Options); 22] = [
            ("", Options::none()),
            (" \t\n", Options::none()),
            ("guard", of(|o| (o.front_guard, o.rear_guard) = (32, 32))),
            ("guard=17", of(|o| (o.front_guard, o.rear_guard) = (2 * ALIGNMENT, 17))),
            ("front_guard=1", of(|o| o.front_guard = ALIGNMENT)),
            ("rear_guard = 16384", of(|o| o.rear_guard = 16384)),
            ("backtrace", of(|o| (o.backtrace, o.backtrace_at_start, o.frames) = (true, true, 16))),
            ("bt=256", of(|o| (o.backtrace, o.backtrace_at_start, o.frames) = (true, true, 256))),
            ("bt_en_on_sig=3", of(|o| (o.backtrace, o.backtrace_on_signal, o.frames) = (true, true, 3))),
            ("bt_dmp_on_ex bt_full", of(|o| (o.dump_on_exit, o.full) = (true, true))),
            ("backtrace_dump_prefix=/x/y", of(|o| o.dump_prefix = b"/x/y".to_vec())),
            ("bt_sz=24", of(|o| o.sizes = (24, 24))),
            ("bt_min_sz=2  bt_max_sz=9", of(|o| o.sizes = (2, 9))),
            ("fill=5", of(|o| (o.fill_on_alloc, o.fill_on_free) = (5, 5))),
            ("fill_on_alloc", of(|o| o.fill_on_alloc = usize::MAX)),
            ("expand_alloc", of(|o| o.expand = 16)),
            ("free_track=7 fill_on_free=4", of(|o| (o.freed, o.fill_on_free, o.freed_frames) = (7, 4, 16))),
            (
                "free_track free_track_backtrace_num_frames=0",
                of(|o| (o.freed, o.fill_on_free, o.freed_frames) = (100, usize::MAX, 0)),
            ),
            (
                "free_track_backtrace_num_frames=0 free_track=2",
                of(|o| (o.freed, o.fill_on_free, o.freed_frames) = (2, usize::MAX, 0)),
            ),
            ("free_track_backtrace_num_frames=3", Options::none()),
            (
                "record_allocs record_allocs_file=r record_allocs_on_exit",
                of(|o| (o.records, o.record_file, o.record_on_exit) = (8_000_000, b"r".to_vec(), true)),
            ),
            (
                "leak_track verify_pointers abort_on_error verbose check_unreachable_on_signal",
                of(|o| {
                    (o.leak_track, o.verify_pointers, o.abort_on_error) = (true, true, true);
                    (o.verbose, o.check_unreachable) = (true, true);
                }),
            ),
        ];
        for (text, right) in cases {
            assert_eq!(parsed(text), right, "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (text, right) in [
            ("backtrace nothing=1", "unknown option nothing; docs/malloc-debug.md lists those that exist"),
            ("leak_track=1", "leak_track takes no value, and has 1; write it without"),
            ("bt_sz", "bt_sz needs a number of bytes; write bt_sz=BYTES"),
            ("bt=-1", "bt=-1 is no decimal number without a sign; give one"),
            ("bt=1x", "bt=1x is no decimal number without a sign; give one"),
            ("bt=0", "bt=0 must be from 1 to 256"),
            ("guard=16385", "guard=16385 must be from 1 to 16384"),
            (
                "record_allocs=99999999999999999999999",
                "record_allocs=99999999999999999999999 must be from 1 to 50000000",
            ),
            ("=3", "unknown option ; docs/malloc-debug.md lists those that exist"),
            (
                "log_allocator_stats_on_exit",
                "log_allocator_stats_on_exit: the statistics of bionic's allocator can't be had from another; leave the option out",
            ),
        ] {
            let error = Options::parse(text.as_bytes()).expect_err(text);
            assert_eq!(error.to_string(), right, "{text:?}");
        }
    }
}
