//! Content of a block to frames of zstd, one behind the other: a decompressor of zstd takes them for one content.

use crate::columns::COLUMNS;
use std::io;
use zstd::bulk;
use zstd::zstd_safe::{CParameter, ParamSwitch, compress_bound};

/// The binary logarithm of the entries of zstd's table of matches: 16 kB, half of a processor's nearest cache.
const TABLE_LOG2: u32 = 12;
/// The shortest match at level 1, whatever the length of what is compressed: columns are so short that zstd would look for
/// shorter ones, which takes longer and finds no more.
const SHORTEST_MATCH: u32 = 7;
/// How far zstd goes without a match before it looks for the next: over all of it.
const NO_MATCHES: u32 = 1 << 17;

/// Columns of fewer bytes are compressed together with what follows.
const WORTH_A_FRAME: usize = 512;
/// The most blocks for which a column's way stays what it is, of those where it is long.
const TRIED_EVERY: u8 = 16;
/// A column that is so many times as long as the one that was tried is tried again: what comes back in it may not have done so
/// in the short one.
const AS_LONG: usize = 4;
/// In haste a column may become so many times longer, when it was tried, if it takes less time.
const LONGER: usize = 2;
/// In haste codes must save this part of a column.
const WORTH_CODES: usize = 16;

/// How a column becomes shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By what stood there before, and by codes for the rest.
    Matches,
    /// By shorter codes for frequent bytes: a third of the time, where there are few or short matches.
    Codes,
    /// Not at all.
    Stored,
}

/// What came of a column when it was last tried, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    raw: usize,
    matches: usize,
    codes: usize,
    /// Blocks until it is tried again, and from that time to the next.
    left: u8,
    every: u8,
}

impl Tried {
    fn way(&self, haste: bool) -> Way {
        let longer = if haste { LONGER } else { 1 };
        if self.codes > longer * self.matches {
            return Way::Matches;
        }
        if haste && self.codes > self.raw - self.raw / WORTH_CODES {
            return Way::Stored;
        }
        Way::Codes
    }
}

/// Compresses the content of blocks.
pub(crate) struct Compressor {
    matches: bulk::Compressor<'static>,
    codes: bulk::Compressor<'static>,
    stored: bulk::Compressor<'static>,
    tried: [Tried; COLUMNS],
    haste: bool,
    /// Kept from block to block: what is compressed together, and a try.
    gathered: Vec<u8>,
    trial: Vec<u8>,
}

impl Compressor {
    /// `level` is zstd's compression level.
    pub(crate) fn new(level: i32) -> io::Result<Self> {
        let with = |level, parameters: &[CParameter]| {
            let mut compressor = bulk::Compressor::new(level)?;
            parameters.iter().try_for_each(|&parameter| compressor.set_parameter(parameter))?;
            io::Result::Ok(compressor)
        };
        let table = CParameter::HashLog(TABLE_LOG2);
        let shortest = CParameter::MinMatch(SHORTEST_MATCH);
        let matches = if level == 1 { with(1, &[table, shortest])? } else { with(level, &[table])? };
        let without = |codes| {
            let literals = CParameter::LiteralCompressionMode(codes);
            // The least table that there is, since nothing is looked up.
            with(1, &[CParameter::HashLog(6), CParameter::TargetLength(NO_MATCHES), shortest, literals])
        };
        Ok(Self {
            matches,
            codes: without(ParamSwitch::Enable)?,
            stored: without(ParamSwitch::Disable)?,
            tried: [Tried::default(); COLUMNS],
            haste: false,
            gathered: Vec::new(),
            trial: Vec::new(),
        })
    }

    /// Whether time matters more than bytes from now on.
    pub(crate) fn hurry(&mut self, haste: bool) {
        self.haste = haste;
    }

    /// Compresses `content` to `out` from `at` on, which is made as long as it must be. Returns where that ends.
    pub(crate) fn whole(&mut self, content: &[u8], out: &mut Vec<u8>, at: usize) -> io::Result<usize> {
        frame(&mut self.matches, content, out, at)
    }

    /// As [`Compressor::whole`], of a content that is a start and columns.
    ///
    /// Each long column becomes a frame of its own: with codes for the bytes of one column, not for a mixture of several, and
    /// without a copy of it.
    pub(crate) fn columns(
        &mut self,
        start: &[u8],
        columns: [&[u8]; COLUMNS],
        out: &mut Vec<u8>,
        mut at: usize,
    ) -> io::Result<usize> {
        self.gathered.clear();
        self.gathered.extend_from_slice(start);
        for (index, column) in columns.into_iter().enumerate() {
            if column.len() < WORTH_A_FRAME {
                self.gathered.extend_from_slice(column);
                continue;
            }
            at = self.take_gathered(out, at)?;
            at = self.column(index, column, out, at)?;
        }
        self.take_gathered(out, at)
    }

    fn take_gathered(&mut self, out: &mut Vec<u8>, at: usize) -> io::Result<usize> {
        if self.gathered.is_empty() {
            return Ok(at);
        }
        let end = frame(&mut self.matches, &self.gathered, out, at)?;
        self.gathered.clear();
        Ok(end)
    }

    fn column(&mut self, index: usize, column: &[u8], out: &mut Vec<u8>, at: usize) -> io::Result<usize> {
        let tried = &mut self.tried[index];
        if let Some(left) = tried.left.checked_sub(1)
            && column.len() / AS_LONG <= tried.raw
        {
            tried.left = left;
            let compressor = match tried.way(self.haste) {
                Way::Matches => &mut self.matches,
                Way::Codes => &mut self.codes,
                Way::Stored => &mut self.stored,
            };
            return frame(compressor, column, out, at);
        }
        let end = frame(&mut self.matches, column, out, at)?;
        let codes = frame(&mut self.codes, column, &mut self.trial, 0)?;
        let before = tried.way(false);
        *tried = Tried { raw: column.len(), matches: end - at, codes, ..*tried };
        // What has changed may change soon.
        tried.every = if tried.way(false) == before { (2 * tried.every).clamp(1, TRIED_EVERY) } else { 1 };
        tried.left = tried.every - 1;
        if codes >= end - at {
            return Ok(end);
        }
        out[at..][..codes].copy_from_slice(&self.trial[..codes]);
        Ok(at + codes)
    }
}

/// Makes a frame of `content`, in `out` from `at` on. Returns where it ends.
fn frame(
    compressor: &mut bulk::Compressor<'static>,
    content: &[u8],
    out: &mut Vec<u8>,
    at: usize,
) -> io::Result<usize> {
    let most = at + compress_bound(content.len());
    if out.len() < most {
        out.resize(most, 0);
    }
    Ok(at + compressor.compress_to_buffer(content, &mut out[at..])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    /// Of so many bytes: such that nothing makes shorter, such that codes make shorter as well as matches do, such that
    /// matches make somewhat shorter than codes, and such that matches make far shorter.
    fn columns(len: usize) -> [Vec<u8>; 4] {
        let mut rng = Rng::with_seed(7);
        let noise: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
        let few: Vec<u8> = (0..len).map(|_| if rng.u8(..) < 40 { rng.u8(..) } else { 0 }).collect();
        // Two that take turns, as kinds of events do.
        let turns: Vec<u8> =
            (0..len).map(|at| if rng.u8(..) < 20 { rng.u8(..4) } else { 8 * (at % 2) as u8 }).collect();
        let again: Vec<u8> = noise.iter().take(400).copied().cycle().take(len).collect();
        [noise, few, turns, again]
    }

    /// A content of these columns, the others of which are short ones.
    fn content<'c>(start: &'c [u8], long: &'c [Vec<u8>]) -> [&'c [u8]; COLUMNS] {
        let mut columns = [start; COLUMNS];
        for (place, long) in [1, 2, 5, 10].into_iter().zip(long) {
            columns[place] = long;
        }
        columns
    }

    #[test]
    fn content_comes_back_whichever_way_its_columns_go() {
        let mut compressor = Compressor::new(1).unwrap();
        let mut decompressor = bulk::Decompressor::new().unwrap();
        let mut out = vec![9; 3];
        for block in 0..120 {
            if block % 50 == 49 {
                compressor = Compressor::new([3, 9][block / 50]).unwrap();
            }
            compressor.hurry(block % 3 == 0);
            let piece = 128 << 10;
            let lens = [40_000, 0, 1, WORTH_A_FRAME - 1, WORTH_A_FRAME, piece - 1, piece, piece + 1];
            let len = if block == 40 { 1 << 20 } else { lens[block % lens.len()] };
            let long = columns(len);
            let columns = content(b"start", &long);
            let all = [&b"lengths"[..], &columns.concat()].concat();
            let end = compressor.columns(b"lengths", columns, &mut out, 3).unwrap();
            assert_eq!(decompressor.decompress(&out[3..end], all.len()).unwrap(), all);
            let end = compressor.whole(&all, &mut out, 3).unwrap();
            assert_eq!(decompressor.decompress(&out[3..end], all.len()).unwrap(), all);
        }
        assert_eq!(out[..3], [9; 3]);
    }

    #[test]
    fn a_column_goes_the_way_that_was_best_when_it_was_tried() {
        let mut compressor = Compressor::new(1).unwrap();
        let long = columns(40_000);
        let mut out = Vec::new();
        compressor.columns(&[], content(&[], &long), &mut out, 0).unwrap();
        let ways = |compressor: &Compressor, haste| [1, 2, 5, 10].map(|at| compressor.tried[at].way(haste));
        assert_eq!(ways(&compressor, false)[1..], [Way::Codes, Way::Matches, Way::Matches]);
        assert_eq!(ways(&compressor, true), [Way::Stored, Way::Codes, Way::Codes, Way::Matches]);
        // What was tried is what comes of it, when it was tried and afterwards.
        let tried = compressor.tried;
        for (index, column) in [1, 2, 5, 10].into_iter().zip(&long) {
            compressor.tried[index].left = 0;
            let len = compressor.column(index, column, &mut out, 0).unwrap();
            assert_eq!(len, tried[index].matches.min(tried[index].codes));
            let mut back = bulk::Decompressor::new().unwrap();
            assert_eq!(&back.decompress(&out[..len], column.len()).unwrap(), column);
        }
        assert!(tried[2].codes <= tried[2].matches);
        for haste in [false, true] {
            compressor.hurry(haste);
            let mut longer = 0;
            for (index, column) in [1, 2, 5, 10].into_iter().zip(&long) {
                compressor.tried[index] = Tried { left: 1, ..tried[index] };
                let len = compressor.column(index, column, &mut out, 0).unwrap();
                let is = match tried[index].way(haste) {
                    Way::Matches => tried[index].matches,
                    Way::Codes => tried[index].codes,
                    // With its frame's head, and three bytes for each piece that zstd makes of it.
                    Way::Stored => len.clamp(column.len(), column.len() + 20),
                };
                assert_eq!(len, is);
                longer += len;
            }
            assert_eq!(longer > tried.iter().map(|tried| tried.matches).sum(), haste);
        }
    }

    #[test]
    fn a_column_that_changes_is_tried_again() {
        let mut compressor = Compressor::new(1).unwrap();
        let [_, few, _, again] = columns(4_000);
        let mut out = Vec::new();
        let mut tries = 0;
        for block in 0..100 {
            let column = if block < 40 { &few } else { &again };
            tries += usize::from(compressor.tried[0].left == 0);
            compressor.column(0, column, &mut out, 0).unwrap();
            let (way, is_new) = (compressor.tried[0].way(false), block >= 40);
            assert_eq!(way, if is_new && tries > 6 { Way::Matches } else { Way::Codes }, "{block}");
        }
        // At 0, 1, 3, 7, 15, 31 and 47, then at 48, 50, 54, 62, 78 and 94.
        assert_eq!(tries, 13);
    }

    #[test]
    fn a_short_column_says_nothing_of_a_long_one() {
        let mut rng = Rng::with_seed(3);
        // What comes back in it does so behind 700 bytes.
        let period: Vec<u8> = (0..700).map(|_| rng.u8(..) & 0x11).collect();
        let long = period.repeat(100);
        let (mut out, mut compressor) = (Vec::new(), Compressor::new(1).unwrap());
        let whole = compressor.whole(&long, &mut out, 0).unwrap();
        for haste in [false, true] {
            compressor.hurry(haste);
            for _ in 0..20 {
                compressor.column(0, &period[..600], &mut out, 0).unwrap();
            }
            assert_eq!(compressor.tried[0].way(haste), Way::Codes);
            for _ in 0..20 {
                let len = compressor.column(0, &long, &mut out, 0).unwrap();
                assert!(len <= whole, "{len} bytes, {whole} by matches");
            }
        }
    }
}
