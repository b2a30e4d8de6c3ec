//! Blocks that were freed and look used: in a thread's cache, or in an arena's lists of small ones.
//!
//! Both are lists through the first words of the blocks. Since glibc 2.32 such a word is mixed with its own address.

use super::arena::{Arenas, FAST_COUNT};
use super::chunks::Chunk;
use super::layout::{Cache, size_of_list};
use super::library::Library;
use super::{Unknown, View, word};
use std::ops::Range;

/// All used chunks, by address, some of which are to be marked as free.
struct All<'c> {
    chunks: &'c mut [Chunk],
    is_mixed: bool,
}

impl All<'_> {
    fn find(&mut self, block: u64) -> Option<&mut Chunk> {
        let at = self.chunks.binary_search_by_key(&block, |chunk| chunk.block).ok()?;
        self.chunks.get_mut(at)
    }

    /// Marks a free block of a list whose chunks have one of these sizes, and gives what its first word says.
    fn free(&mut self, block: u64, sizes: &Range<u64>) -> Result<u64, Unknown> {
        let is_mixed = self.is_mixed;
        let broken = Unknown::Broken { what: "a list of freed blocks", at: block };
        let Some(chunk) = self.find(block) else { return Err(broken) };
        if !sizes.contains(&chunk.size()) || !chunk.set_free() {
            return Err(broken);
        }
        Ok(if is_mixed { chunk.first ^ (block >> 12) } else { chunk.first })
    }
}

/// Marks what was freed among all used chunks, and the caches themselves. `pointers`: each thread's own.
pub(super) fn take_out(
    view: View<'_>,
    library: &Library,
    arenas: &Arenas,
    pointers: impl Iterator<Item = u64>,
    chunks: &mut [Chunk],
) -> Result<(), Unknown> {
    let form = library.layout.cache();
    let mut all = All { chunks, is_mixed: library.layout.is_mixed() };
    for cache in caches(view, library, form, pointers, &mut all, arenas.depth)? {
        let mut bytes = vec![0; form.len()];
        view.read(cache, &mut bytes)?;
        for list in 0..form.lists {
            let sizes = form.sizes(list);
            let mut block = form.first(&bytes, list);
            let number = form.number(&bytes, list);
            let expected = if form.tells_room { arenas.depth.checked_sub(number) } else { Some(number) };
            let mut found = 0;
            while block != 0 && expected.is_some_and(|expected| found < expected) {
                block = all.free(block, &sizes)?;
                found += 1;
            }
            if block != 0 || expected != Some(found) {
                return Err(Unknown::Broken { what: "a thread's cache of freed blocks", at: cache });
            }
        }
        if let Some(chunk) = all.find(cache) {
            chunk.set_free();
        }
    }
    for lists in &arenas.fast {
        for (list, &first) in lists.iter().enumerate().take(FAST_COUNT) {
            let mut chunk = first;
            while chunk != 0 {
                // It ends: no block is freed twice.
                let size = size_of_list(list);
                chunk = all.free(chunk + 16, &(size..size + 1))?;
            }
        }
    }
    Ok(())
}

/// The threads' caches: what the one variable leads to that leads, in each thread that has it, to a chunk of a cache's size
/// with as many numbers as lists.
fn caches(
    view: View<'_>,
    library: &Library,
    form: Cache,
    pointers: impl Iterator<Item = u64>,
    all: &mut All<'_>,
    depth: u64,
) -> Result<Vec<u64>, Unknown> {
    let (chunk_sizes, has_empty) = (form.chunk_sizes(), library.layout.has_empty_cache());
    let variables = &library.thread_variables;
    let mut found: Vec<Option<Vec<u64>>> = variables.iter().map(|_| Some(Vec::new())).collect();
    let first = variables.first().copied().unwrap_or(0);
    let mut bytes = vec![0; 8 * variables.len()];
    // One that has none yet, or shares another's, has nothing of its own.
    let mut pointers: Vec<u64> = pointers.filter(|&pointer| pointer != 0).collect();
    pointers.sort_unstable();
    pointers.dedup();
    for pointer in pointers {
        view.read(pointer.wrapping_add(first), &mut bytes)?;
        for (index, candidate) in found.iter_mut().enumerate() {
            let cache = word(&bytes, 8 * index);
            let is_none = cache == 0 || has_empty && library.image.contains(&cache);
            let is_one = is_none || all.find(cache).is_some_and(|chunk| chunk_sizes.contains(&chunk.size()));
            match candidate {
                Some(caches) if is_one && !is_none => caches.push(cache),
                Some(_) if is_one => {}
                _ => *candidate = None,
            }
        }
    }
    let looks_so = |caches: &Vec<u64>| {
        let mut bytes = vec![0; form.len()];
        caches.iter().all(|&cache| {
            let is_read = view.read(cache, &mut bytes).is_ok();
            let none = if form.tells_room { depth } else { 0 };
            let is_list = |list| (form.number(&bytes, list) == none) == (form.first(&bytes, list) == 0);
            is_read && (0..form.lists).all(is_list)
        })
    };
    let mut found: Vec<Vec<u64>> =
        found.into_iter().flatten().filter(|caches| !caches.is_empty() && looks_so(caches)).collect();
    match (found.pop(), found.is_empty()) {
        (Some(mut caches), true) => {
            caches.sort_unstable();
            let count = caches.len();
            caches.dedup();
            let is_each_its_own = caches.len() == count;
            is_each_its_own.then_some(caches).ok_or(Unknown::Structure("two threads have one cache"))
        }
        // Nothing was ever allocated.
        (None, _) if all.chunks.is_empty() => Ok(Vec::new()),
        (None, _) => Err(Unknown::Structure("the threads' caches of freed blocks were not found")),
        _ => Err(Unknown::Structure("several things look like the threads' caches of freed blocks")),
    }
}
