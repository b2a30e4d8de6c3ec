//! `.gnu_debugdata`: an object file with the functions that aren't exported, compressed with xz.

use xz4rust::XzDecoder;

use super::{
    FileError,
    contents::{Contents, Pages},
};

/// More than the symbols of the largest programs have.
const LEN_MAX: usize = if size_of::<usize>() == 8 { 1 << 28 } else { 1 << 26 };
/// A table of symbols shrinks to a quarter or so. What grows to more than this many times its length was made to.
const GROWTH_MAX: usize = 64;
/// What is short may grow to as much in any case.
const LEN_SHORT: usize = 1 << 20;
/// Longer sections aren't looked at.
pub(super) const INPUT_MAX: usize = 1 << 26;
/// The largest dictionary that `xz -9` uses. What is larger needs an option that nobody uses here.
const DICTIONARY_MAX: usize = 1 << 26;

/// Decompresses the section's bytes. `path` is for errors.
pub(super) fn decompress(path: &[u8], mut input: &[u8]) -> Result<Contents, FileError> {
    let malformed =
        || FileError::Malformed { path: path.into(), what: "its .gnu_debugdata can't be decompressed" };
    let len_max = input.len().saturating_mul(GROWTH_MAX).clamp(LEN_SHORT, LEN_MAX);
    let mut pages =
        Pages::new(len_max).map_err(|errno| FileError::Unreadable { path: path.into(), errno })?;
    // On the heap, as it is some 40 KiB long and the thread's stack may not be.
    let mut decoder = XzDecoder::in_heap_with_alloc_dict_size(0, DICTIONARY_MAX);
    let mut len = 0;
    loop {
        let output = pages.bytes().get_mut(len..).unwrap_or(&mut []);
        if output.is_empty() {
            return Err(FileError::TooLarge { path: path.into(), len: len as u64 });
        }
        let step = decoder.decode(input, output).map_err(|_| malformed())?;
        len += step.output_produced();
        input = input.get(step.input_consumed()..).unwrap_or(&[]);
        if step.is_end_of_stream() {
            return Ok(Contents::of(pages, len));
        }
        // It needs more than there is.
        if !step.made_progress() {
            return Err(malformed());
        }
    }
}
