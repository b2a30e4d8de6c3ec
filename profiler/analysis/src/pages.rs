//! Pages of words for [`crate::blocks`]. They are looked at in the order in which a heap is used, which is any: with the
//! processor's usual pages of 4 KiB it would look up nearly each address anew. So they lie in huge ones if the system has them.

use memmap2::{Advice, MmapMut};

/// Words of a page.
pub(crate) const WORDS: usize = 512;
const PAGE: usize = 8 * WORDS;
/// Pages that are got from the system together.
const STRETCH: usize = 2048;
/// Of the first ones only so many are used. They don't lie in huge pages: many a heap needs no more.
const FIRST: usize = 256;

/// Pages that are all zero at first.
#[derive(Debug)]
pub(crate) struct Pages {
    stretches: Vec<MmapMut>,
    next: usize,
}

impl Default for Pages {
    fn default() -> Self {
        Self { stretches: Vec::new(), next: STRETCH - FIRST }
    }
}

impl Pages {
    /// The number of another page, if there is memory.
    pub(crate) fn add(&mut self) -> Option<u32> {
        let page = u32::try_from(self.next).ok().filter(|&page| page < u32::MAX)?;
        if self.next / STRETCH >= self.stretches.len() {
            let memory = MmapMut::map_anon(STRETCH * PAGE).ok()?;
            if !self.stretches.is_empty() {
                // As well without.
                let _ = memory.advise(Advice::HugePage);
            }
            self.stretches.push(memory);
        }
        self.next += 1;
        Some(page)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.next - (STRETCH - FIRST)
    }

    #[inline]
    fn bytes(&self, page: usize, at: usize) -> Option<&[u8; 8]> {
        self.stretches[page / STRETCH].get(page % STRETCH * PAGE + at % WORDS * 8..)?.first_chunk()
    }

    /// A page's word.
    #[inline]
    pub(crate) fn word(&self, page: usize, at: usize) -> u64 {
        self.bytes(page, at).map_or(0, |&bytes| u64::from_ne_bytes(bytes))
    }

    /// Changes a page's word.
    #[inline]
    pub(crate) fn set(&mut self, page: usize, at: usize, word: u64) {
        let bytes = self.stretches[page / STRETCH].get_mut(page % STRETCH * PAGE + at % WORDS * 8..);
        if let Some(bytes) = bytes.and_then(|bytes| bytes.first_chunk_mut()) {
            *bytes = word.to_ne_bytes();
        }
    }

    /// A page's words.
    pub(crate) fn words(&self, page: usize) -> impl Iterator<Item = u64> {
        (0..WORDS).map(move |at| self.word(page, at))
    }
}
