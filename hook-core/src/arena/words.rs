//! Words that code names by their distance: writable, never executable, and in pages of their own.
//!
//! # Safety
//! Pages of words are never unmapped, so a word that was given out is good for ever.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::*};

use super::CodeSlot;
use crate::{
    memory::place::{Atlas, map_near},
    native::NEAR_REACH,
    sys::{self, Errno, PAGE},
};

const SIZE: usize = size_of::<AtomicU64>();

#[derive(Debug, Default)]
pub(super) struct Words(Vec<Page>);

#[derive(Debug)]
struct Page {
    start: usize,
    /// Up to here words were given out.
    used: usize,
    /// Those that came back.
    free: Vec<&'static AtomicU64>,
}

impl Words {
    /// How many bytes are in use.
    pub(super) fn used(&self) -> usize {
        self.0.iter().map(|page| page.used - page.free.len() * SIZE).sum()
    }

    pub(super) fn take(&mut self, code: &CodeSlot, atlas: &mut Atlas) -> Result<&'static AtomicU64, Errno> {
        let reach = NEAR_REACH as usize - code.len - SIZE;
        let reach = code.at.saturating_sub(reach)..code.at.saturating_add(reach);
        let near = |page: &&mut Page| reach.contains(&page.start) && reach.contains(&(page.start + PAGE));
        // The last page is the one that has room, unless words came back or the code lies elsewhere.
        if let Some(word) = self.0.iter_mut().rev().filter(near).find_map(Page::take) {
            return Ok(word);
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = map_near(code.at, PAGE, &reach, atlas, rights, flags, None)?;
        sys::name_mapping(start, PAGE, c"grapnel-words");
        let mut page = Page { start, used: 0, free: Vec::new() };
        let word = page.take().ok_or(sys::ENOMEM)?;
        self.0.push(page);
        Ok(word)
    }

    pub(super) fn put_back(&mut self, word: &'static AtomicU64) {
        let at = core::ptr::from_ref(word) as usize;
        if let Some(page) = self.0.iter_mut().find(|page| (page.start..page.start + page.used).contains(&at))
        {
            word.store(0, Relaxed);
            page.free.push(word);
        }
    }
}

impl Page {
    fn take(&mut self) -> Option<&'static AtomicU64> {
        self.free.pop().or_else(|| {
            let at = self.start + self.used;
            self.used = Some(self.used + SIZE).filter(|&used| used <= PAGE)?;
            // SAFETY: the word is aligned, zeroed, in a page that is never unmapped, and given out once.
            Some(unsafe { &*(at as *const AtomicU64) })
        })
    }
}
