//! Mapping memory near an address without disturbing what is mapped.
//!
//! # Safety
//! Every mapping is made with `MAP_FIXED_NOREPLACE`, so none that exists is ever replaced, however old the list of
//! mappings is that the place was chosen by.

use core::ops::Range;

use super::maps::{HIGHEST, LOWEST, Maps};
use crate::sys::{self, EEXIST, ENOMEM, Errno, Fd, PAGE};

/// The mappings as they were, and what was mapped since by who has this.
#[derive(Debug, Default)]
pub(crate) struct Atlas {
    list: Option<Maps>,
    /// It was read for this.
    fresh: bool,
}

impl Atlas {
    /// Begins with a list, unless there is one already.
    pub(crate) fn begin(&mut self, maps: Option<&Maps>) {
        if self.list.is_none() {
            self.list = maps.cloned();
        }
    }

    pub(crate) fn list(&self) -> Option<&Maps> {
        self.list.as_ref()
    }

    /// Reads it anew.
    fn refresh(&mut self) -> Result<(), Errno> {
        (self.list, self.fresh) = (Some(Maps::read()?), true);
        Ok(())
    }

    /// Reads it anew if that wasn't done before. Says whether it was done now.
    pub(crate) fn refresh_once(&mut self) -> Result<bool, Errno> {
        let old = !self.fresh;
        if old {
            self.refresh()?;
        }
        Ok(old)
    }

    fn note(&mut self, at: usize, len: usize) {
        if let Some(list) = &mut self.list {
            list.note(at..at + len);
        }
    }
}

/// Maps `len` bytes so that all of them lie in `reach`, without disturbing any other mapping.
pub(crate) fn map_near(
    near: usize,
    len: usize,
    reach: &Range<usize>,
    atlas: &mut Atlas,
    prot: i32,
    flags: i32,
    file: Option<&Fd>,
) -> Result<usize, Errno> {
    let mut tried = None;
    // Another thread may take the place between the look and the mapping; then the look is repeated. The list of an emulator
    // lacks what is its own.
    for _ in 0..8 {
        let Some(list) = atlas.list() else { break };
        let place = place(list, near, len, reach, true).or_else(|| place(list, near, len, reach, false));
        let Some(place) = place else { return Err(ENOMEM) };
        if tried.replace(place) == Some(place) {
            break;
        }
        match map_exactly(place, len, prot, flags, file) {
            Err(EEXIST) => atlas.refresh()?,
            other => return other.inspect(|at| atlas.note(*at, len)),
        }
    }
    // Without /proc: knock at addresses further and further away.
    const KNOCKS: usize = 256;
    let step = (reach.len() / KNOCKS).clamp(PAGE, 16 << 20) & !(PAGE - 1);
    let mut last = ENOMEM;
    for distance in (1..=KNOCKS).map(|i| i * step) {
        for at in [near.checked_sub(distance), near.checked_add(distance)].into_iter().flatten() {
            let at = at & !(PAGE - 1);
            if at < LOWEST || at < reach.start || at.saturating_add(len) > reach.end.min(HIGHEST) {
                continue;
            }
            match map_exactly(at, len, prot, flags, file) {
                Err(EEXIST) => {}
                Err(other) => last = other,
                ok => return ok.inspect(|at| atlas.note(*at, len)),
            }
        }
    }
    Err(last)
}

/// Not every C library's headers have it (Linux, include/uapi/asm-generic/mman-common.h).
const MAP_FIXED_NOREPLACE: i32 = 0x10_0000;

fn map_exactly(at: usize, len: usize, prot: i32, flags: i32, file: Option<&Fd>) -> Result<usize, Errno> {
    // SAFETY: MAP_FIXED_NOREPLACE never replaces a mapping.
    let got = unsafe { sys::mmap(at, len, prot, flags | MAP_FIXED_NOREPLACE, file) }?;
    if got == at {
        return Ok(at);
    }
    // Kernels before 4.17 take the flag for a hint.
    // SAFETY: just mapped, and nothing knows it.
    unsafe { sys::munmap(got, len) }?;
    Err(EEXIST)
}

/// The free place nearest to `near` for `len` bytes inside `reach`. With `leave_room`, not where the heap or the main
/// thread's stack would grow.
fn place(maps: &Maps, near: usize, len: usize, reach: &Range<usize>, leave_room: bool) -> Option<usize> {
    let mut best: Option<usize> = None;
    maps.for_each_gap(leave_room, |gap| {
        let start = gap.start.max(reach.start).checked_next_multiple_of(PAGE)?;
        let last = gap.end.min(reach.end).checked_sub(len)? & !(PAGE - 1);
        if start <= last {
            let at = (near & !(PAGE - 1)).clamp(start, last);
            if best.is_none_or(|b| at.abs_diff(near) < b.abs_diff(near)) {
                best = Some(at);
            }
        }
        Some(())
    });
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn where_all_is_taken_there_is_no_memory() {
        let memory = vec![0u8; 16 * PAGE];
        let start = (memory.as_ptr() as usize).next_multiple_of(PAGE);
        let (near, reach) = (start + 4 * PAGE, start..start + 8 * PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let maps = Maps::read().unwrap();
        for maps in [Some(&maps), None] {
            let mut atlas = Atlas::default();
            atlas.begin(maps);
            let got = map_near(near, PAGE, &reach, &mut atlas, libc::PROT_READ, flags, None);
            assert_eq!(got, Err(ENOMEM), "with a list of mappings: {}", maps.is_some());
        }
        drop(memory);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn what_was_mapped_is_known_without_reading_the_list_again() {
        let mut atlas = Atlas::default();
        atlas.begin(Some(&Maps::read().unwrap()));
        let near = where_all_is_taken_there_is_no_memory as *const () as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let reach = near.saturating_sub(1 << 30)..near + (1 << 30);
        let mut places: Vec<_> = (0..20)
            .map(|_| map_near(near, PAGE, &reach, &mut atlas, libc::PROT_READ, flags, None).unwrap())
            .collect();
        // Others of this process may map memory there meanwhile, but not each time.
        let listed = atlas.list().unwrap();
        assert!(places.iter().all(|place| listed.find(*place).is_some_and(|m| m.range.contains(place))));
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 20);
        for place in places {
            // SAFETY: mapped above.
            unsafe { sys::munmap(place, PAGE) }.unwrap();
        }
    }
}
