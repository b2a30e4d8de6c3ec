//! The content of an events block: columns of numbers, each of one kind, so that like stands by like.
//!
//! ```text
//! content = length:LEB128 (of each column) bytes (of each column)
//! ```
//! Of most numbers the first byte and the others stand in columns of their own.

use crate::varint::{self, get};
use alloc::vec::Vec;
use core::ops::Range;

/// What a column holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    /// Tags, and all numbers of records that are rare.
    Tags = 0,
    /// Stacks.
    Stacks = 1,
    /// Sizes.
    Sizes = 3,
    /// Which block.
    Places = 5,
    /// Frames of nodes.
    Frames = 7,
    /// Parents of nodes.
    Parents = 9,
}

/// All but the tags have a second one for what follows a number's first byte.
pub(crate) const COLUMNS: usize = 11;

/// The most bytes that a record adds to a column, with what may be written behind its end.
const RECORD: usize = 64;
/// Records that there is room for whenever more is made.
const STEP: usize = 256;

/// A column that is being filled: its first `len` bytes. What is behind them is room.
#[derive(Debug, Default)]
struct Growing {
    bytes: Vec<u8>,
    len: usize,
}

impl Growing {
    fn content(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn make_room(&mut self, more: usize) {
        let wanted = self.len + more;
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted.next_multiple_of(RECORD * STEP), 0);
        }
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    #[inline]
    fn push_if(&mut self, wanted: bool, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += usize::from(wanted);
    }

    /// Appends a number of at most 57 bits.
    #[inline]
    fn put(&mut self, value: u64) {
        let (word, len) = varint::word(value);
        self.bytes[self.len..self.len + 8].copy_from_slice(&word.to_le_bytes());
        self.len += len.min(8);
        if len > 8 {
            self.push((value >> 56) as u8);
        }
    }
}

/// Columns that are being filled. Each record is announced by [`Columns::record`]: from then on the writes below find room.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    columns: [Growing; COLUMNS],
    /// Records that there is room for.
    room: usize,
}

impl Columns {
    /// A record of the usual kind follows: at most a switch, a tag, and five numbers to a column.
    #[inline]
    pub(crate) fn record(&mut self) {
        match self.room.checked_sub(1) {
            Some(room) => self.room = room,
            None => self.make_room(0),
        }
    }

    /// As [`Columns::record`], with so many bytes besides among the tags.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_room(&mut self, among_tags: usize) {
        for column in &mut self.columns {
            column.make_room(RECORD * STEP);
        }
        self.columns[Column::Tags as usize].make_room(RECORD * STEP + among_tags);
        self.room = STEP - 1;
    }

    #[inline]
    pub(crate) fn tag(&mut self, tag: u8) {
        self.columns[Column::Tags as usize].push(tag);
    }

    /// A number among the tags.
    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.tag(value as u8 | 0x80);
            value >>= 7;
        }
        self.tag(value as u8);
    }

    /// Bytes among the tags, for which there is [room](Columns::make_room).
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.tag(byte));
    }

    /// Bytes of tags and rare records so far.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.columns[Column::Tags as usize].len
    }

    /// Appends a number to a column. Whether it has more bytes than one is seldom known before, so that is no jump.
    #[inline(always)]
    pub(crate) fn put(&mut self, column: Column, value: u64) {
        let at = column as usize;
        let (upper, more) = (value >> 7, value >= 0x80);
        self.columns[at].push(value as u8 | (u8::from(more) << 7));
        if upper < 0x80 {
            self.columns[at + 1].push_if(more, upper as u8);
        } else {
            self.columns[at + 1].put(upper);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.columns.iter_mut().for_each(|column| column.len = 0);
    }

    /// Appends the lengths of the columns to `out`.
    pub(crate) fn write_lengths(&self, out: &mut Vec<u8>) {
        for column in &self.columns {
            varint::put(out, column.len as u64);
        }
    }

    /// What is in them.
    pub(crate) fn contents(&self) -> [&[u8]; COLUMNS] {
        self.columns.each_ref().map(Growing::content)
    }
}

/// Where a reader is in each column.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    rest: [Range<usize>; COLUMNS],
}

impl Cursors {
    /// The starts of the columns of a content; `None` if that is not what it is.
    pub(crate) fn begin(content: &[u8]) -> Option<Self> {
        let mut at = 0;
        let mut lens = [0; COLUMNS];
        for len in &mut lens {
            *len = usize::try_from(get(content, &mut at)?).ok()?;
        }
        let mut cursors = Self::default();
        for (rest, len) in cursors.rest.iter_mut().zip(lens) {
            let end = at.checked_add(len).filter(|&end| end <= content.len())?;
            *rest = at..end;
            at = end;
        }
        Some(cursors)
    }

    /// Bytes from the content's start to the next tag.
    pub(crate) fn tag_at(&self) -> usize {
        self.rest[Column::Tags as usize].start
    }

    /// The next tag, which stays.
    #[inline]
    pub(crate) fn tag(&self, content: &[u8]) -> Option<u8> {
        self.tags(content).first().copied()
    }

    /// Passes over the next tag.
    #[inline]
    pub(crate) fn pass_tag(&mut self) {
        self.rest[Column::Tags as usize].start += 1;
    }

    #[inline]
    fn tags<'c>(&self, content: &'c [u8]) -> &'c [u8] {
        content.get(self.rest[Column::Tags as usize].clone()).unwrap_or(&[])
    }

    /// A number among the tags.
    pub(crate) fn number(&mut self, content: &[u8]) -> Option<u64> {
        let mut at = 0;
        let number = get(self.tags(content), &mut at)?;
        self.rest[Column::Tags as usize].start += at;
        Some(number)
    }

    /// Bytes among the tags.
    pub(crate) fn bytes<'c>(&mut self, content: &'c [u8], len: usize) -> Option<&'c [u8]> {
        let bytes = self.tags(content).get(..len)?;
        self.rest[Column::Tags as usize].start += len;
        Some(bytes)
    }

    /// The next number of a column.
    #[inline]
    pub(crate) fn get(&mut self, content: &[u8], column: Column) -> Option<u64> {
        let at = column as usize;
        let first = *content.get(self.rest[at].clone())?.first()?;
        self.rest[at].start += 1;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let rest = content.get(self.rest[at + 1].clone())?;
        let mut len = 0;
        let upper = get(rest, &mut len)?;
        self.rest[at + 1].start += len;
        (upper >> 57 == 0).then_some((upper << 7) | u64::from(first & 0x7f))
    }
}

impl Cursors {
    /// The columns that events of the heap are in, to take many of them in a row. [`Cursors::leave_heap`] must follow.
    pub(crate) fn heap<'c>(&self, content: &'c [u8]) -> HeapColumns<'c> {
        let rest = |at: usize| content.get(self.rest[at].clone()).unwrap_or(&[]);
        let numbers =
            |column: Column| Numbers { first: rest(column as usize), others: rest(column as usize + 1) };
        HeapColumns {
            tags: rest(Column::Tags as usize),
            stacks: numbers(Column::Stacks),
            sizes: numbers(Column::Sizes),
            places: numbers(Column::Places),
        }
    }

    /// Goes on behind what was taken of those columns.
    pub(crate) fn leave_heap(&mut self, columns: &HeapColumns<'_>) {
        let mut leave = |at: usize, left: &[u8]| self.rest[at].start = self.rest[at].end - left.len();
        leave(Column::Tags as usize, columns.tags);
        for (column, numbers) in [
            (Column::Stacks, &columns.stacks),
            (Column::Sizes, &columns.sizes),
            (Column::Places, &columns.places),
        ] {
            leave(column as usize, numbers.first);
            leave(column as usize + 1, numbers.others);
        }
    }
}

/// What is left of the columns that events of the heap are in.
pub(crate) struct HeapColumns<'c> {
    pub(crate) tags: &'c [u8],
    pub(crate) stacks: Numbers<'c>,
    pub(crate) sizes: Numbers<'c>,
    pub(crate) places: Numbers<'c>,
}

/// What is left of a column of numbers: their first bytes, and the others.
pub(crate) struct Numbers<'c> {
    first: &'c [u8],
    others: &'c [u8],
}

impl Numbers<'_> {
    /// The next number.
    #[inline(always)]
    pub(crate) fn get(&mut self) -> Option<u64> {
        let (&first, rest) = self.first.split_first()?;
        self.first = rest;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let upper = varint::take(&mut self.others)?;
        (upper >> 57 == 0).then_some((upper << 7) | u64::from(first & 0x7f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_come_back() {
        let mut columns = Columns::default();
        let numbers = [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        columns.record();
        columns.tag(7);
        columns.number(9);
        for number in numbers {
            columns.record();
            columns.put(Column::Sizes, number);
            columns.put(Column::Frames, !number);
        }
        let mut content = Vec::new();
        columns.write_lengths(&mut content);
        columns.contents().iter().for_each(|column| content.extend_from_slice(column));
        let mut cursors = Cursors::begin(&content).unwrap();
        let mut columns = cursors.heap(&content);
        assert_eq!((columns.tags, columns.stacks.get(), columns.places.get()), (&[7, 9][..], None, None));
        assert_eq!(numbers.map(|_| columns.sizes.get()), numbers.map(Some));
        assert_eq!(columns.sizes.get(), None);
        // Up to half of the numbers the one way, the others the other.
        let mut columns = cursors.heap(&content);
        let half = numbers.len() / 2;
        assert!(numbers[..half].iter().all(|&number| columns.sizes.get() == Some(number)));
        let mut behind = Cursors::begin(&content).unwrap();
        behind.leave_heap(&columns);
        assert!(numbers[half..].iter().all(|&number| behind.get(&content, Column::Sizes) == Some(number)));
        assert_eq!(cursors.tag(&content), Some(7));
        cursors.pass_tag();
        assert_eq!(cursors.number(&content), Some(9));
        assert_eq!(cursors.tag(&content), None);
        for number in numbers {
            assert_eq!(cursors.get(&content, Column::Sizes), Some(number));
            assert_eq!(cursors.get(&content, Column::Frames), Some(!number));
        }
        assert_eq!(cursors.get(&content, Column::Sizes), None);
        for len in 0..content.len() {
            assert!(Cursors::begin(&content[..len]).is_none());
        }
    }
}
