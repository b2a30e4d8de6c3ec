//! Blocks that were freed and look used: in a thread's cache, or in an arena's lists of small ones.
//!
//! Both are lists through the first words of the blocks. Since glibc 2.32 such a word is mixed with its own address.

use super::arena::{Arenas, FAST_COUNT};
use super::chunks::Chunk;
use super::library::Library;
use super::{Unknown, View, word};

/// Lists of a thread's cache.
const LISTS: usize = 64;
/// The smallest chunk, and by how much the next list's are larger.
const SMALLEST: u64 = 32;
const STEP: u64 = 16;

/// A thread's cache, as a version has it: the bytes of a number in it. The lists follow the numbers.
struct Form {
    number: usize,
}

impl Form {
    fn of(library: &Library) -> Self {
        Self { number: if library.minor < 30 { 1 } else { 2 } }
    }

    fn len(&self) -> usize {
        LISTS * (self.number + 8)
    }

    /// Its chunk.
    fn size(&self) -> u64 {
        (self.len() as u64 + 8).next_multiple_of(16)
    }

    fn number(&self, bytes: &[u8], list: usize) -> u64 {
        let mask = (1 << (8 * self.number)) - 1;
        word(bytes, self.number * list) & mask
    }

    fn first(&self, bytes: &[u8], list: usize) -> u64 {
        word(bytes, LISTS * self.number + 8 * list)
    }
}

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

    /// Marks a free block of a list whose chunks have this size, and gives what its first word says.
    fn free(&mut self, block: u64, size: u64) -> Result<u64, Unknown> {
        let is_mixed = self.is_mixed;
        let broken = Unknown::Broken { what: "a list of freed blocks", at: block };
        let Some(chunk) = self.find(block) else { return Err(broken) };
        if chunk.size() != size || !chunk.set_free() {
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
    let form = Form::of(library);
    let mut all = All { chunks, is_mixed: library.minor >= 32 };
    for cache in caches(view, library, &form, pointers, &mut all)? {
        let mut bytes = vec![0; form.len()];
        view.read(cache, &mut bytes)?;
        for list in 0..LISTS {
            let size = SMALLEST + STEP * list as u64;
            let mut block = form.first(&bytes, list);
            for _ in 0..form.number(&bytes, list) {
                block = all.free(block, size)?;
            }
            if block != 0 {
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
                chunk = all.free(chunk + 16, SMALLEST + STEP * list as u64)?;
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
    form: &Form,
    pointers: impl Iterator<Item = u64>,
    all: &mut All<'_>,
) -> Result<Vec<u64>, Unknown> {
    let size = form.size();
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
            let is_one = cache == 0 || all.find(cache).is_some_and(|chunk| chunk.size() == size);
            match candidate {
                Some(caches) if is_one && cache != 0 => caches.push(cache),
                Some(_) if is_one => {}
                _ => *candidate = None,
            }
        }
    }
    let looks_so = |caches: &Vec<u64>| {
        let mut bytes = vec![0; form.len()];
        caches.iter().all(|&cache| {
            let is_read = view.read(cache, &mut bytes).is_ok();
            let is_list = |list| (form.number(&bytes, list) == 0) == (form.first(&bytes, list) == 0);
            is_read && (0..LISTS).all(is_list)
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
