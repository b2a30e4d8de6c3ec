//! On stacks of this process's and mappings in their place.

use super::*;

#[test]
fn reads_the_stack_and_nothing_bad() {
    let words = [1usize, 2, 3];
    let at = &raw const words as u64;
    let mut stack = StackMemory::new();
    stack.begin(at);
    assert_eq!(stack.read(at + WORD), Some(2));
    assert_eq!(stack.read(at + 1), Some(2 << (8 * WORD - 8)));
    assert_eq!(stack.read(0), None);
    assert_eq!(stack.read(u64::MAX - 3), None);
    assert_eq!(stack.read(0xffff_8000_0000_0000), None);
    stack.begin(at);
    assert_eq!(stack.read(at), Some(1));
    stack.distrust();
    assert_eq!(stack.read(at), Some(1));
    assert_eq!(stack.read(64), None);
}

#[test]
fn the_page_behind_a_stack_is_not_taken_for_readable() {
    // SAFETY: a fresh mapping, of which the second page is given back.
    let end = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(core::ptr::null_mut(), 2 * PAGE as usize, libc::PROT_READ, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        let end = page.byte_add(PAGE as usize);
        libc::munmap(end, PAGE as usize);
        end as u64
    };
    let mut stack = StackMemory::new();
    stack.begin(end);
    stack.distrust();
    assert_eq!(stack.read(end), None);
    assert_eq!(stack.read(end - WORD), Some(0));
    assert_eq!(stack.read(end - 1), None, "across the end");
    // SAFETY: nothing refers to the page any more.
    unsafe { libc::munmap((end - PAGE) as *mut _, PAGE as usize) };
}

#[test]
fn other_memory_is_read_and_is_no_part_of_the_stack() {
    let local = 7u64;
    let at = &raw const local as u64;
    let heap = vec![9u64; 8192];
    let (first, last) = (heap.as_ptr() as u64, &raw const heap[8191] as u64);
    let mut stack = StackMemory::new();
    stack.begin(at);
    let range = stack.range();
    assert_eq!((stack.read(first), stack.read(last)), (Some(9), Some(9)));
    assert_eq!((stack.range(), stack.range_of_walk(), stack.range_at(at)), (range, None, None));
    assert_eq!(stack.read(at), Some(7));
    stack.begin(at);
    assert_eq!(stack.range_at(at), Some(range));
    stack.begin(first + 64);
    assert_eq!(stack.read(first + 64), Some(9));
    stack.begin(at);
    assert_eq!(stack.range_at(at), Some(range), "it was kept");
}

/// Pages in a row: two stacks of half of them each, the upper of which can be given back.
struct Stacks(u64);

const PAGES: u64 = 32;

impl Stacks {
    fn new() -> Self {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping.
        let at =
            unsafe { libc::mmap(core::ptr::null_mut(), (PAGES * PAGE) as usize, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Stacks(at as u64)
    }

    /// Where the lower stack ends, and the upper one begins.
    fn middle(&self) -> u64 {
        self.0 + PAGES / 2 * PAGE
    }

    fn top(&self) -> u64 {
        self.0 + PAGES * PAGE
    }

    fn unmap(&self, from: u64, to: u64) {
        // SAFETY: it is ours, and nothing refers to it.
        unsafe { libc::munmap(from as *mut _, (to - from) as usize) };
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        self.unmap(self.0, self.top());
    }
}

#[test]
fn a_known_stack_that_is_gone_is_not_read() {
    let stacks = Stacks::new();
    // Not side by side.
    stacks.unmap(stacks.middle(), stacks.middle() + PAGE);
    let (lower, upper) = (stacks.middle() - 64, stacks.top() - 64);
    let mut stack = StackMemory::new();
    stack.begin(upper);
    assert_eq!(stack.read(upper), Some(0));
    stack.begin(lower);
    assert_eq!((stack.read(lower), stack.read(upper)), (Some(0), Some(0)));
    stacks.unmap(stacks.middle(), stacks.top());
    for _ in 0..2 {
        stack.begin(lower);
        assert_eq!((stack.read(lower), stack.read(upper)), (Some(0), None));
    }
}

#[test]
fn what_a_walk_that_was_led_astray_found_above_is_given_back() {
    for how in [StackMemory::doubt, |stack: &mut StackMemory| stack.ends(stack.from + 64)] {
        let stacks = Stacks::new();
        let (sp, beyond) = (stacks.middle() - 64, stacks.middle() + 64);
        let mut stack = StackMemory::new();
        stack.begin(stacks.middle() - 2 * PAGE);
        assert_eq!(stack.read(sp), Some(0));
        stack.begin(sp);
        let range = stack.range();
        assert_eq!((stack.read(sp), stack.read(beyond)), (Some(0), Some(0)));
        assert!(stack.range().hi > range.hi);
        how(&mut stack);
        stacks.unmap(stacks.middle(), stacks.top());
        stack.begin(sp);
        assert_eq!(stack.range(), range);
        assert_eq!((stack.read(sp), stack.read(beyond)), (Some(0), None));
    }
}

/// As where the stack that the last walk was on lies next to this one's.
#[test]
fn a_stack_that_joined_another_one_is_parted_from_it() {
    let stacks = Stacks::new();
    let (sp, above) = (stacks.middle() - 64, stacks.middle() + 64);
    let mut stack = StackMemory::new();
    stack.begin(above);
    stack.begin(sp);
    assert_eq!((stack.read(sp), stack.read(above)), (Some(0), Some(0)));
    stack.doubt();
    stacks.unmap(stacks.middle(), stacks.top());
    stack.begin(sp);
    assert_eq!((stack.read(sp), stack.read(above)), (Some(0), None));
}

#[test]
fn the_next_stack_is_not_grown_over_from_afar() {
    let stacks = Stacks::new();
    let (sp, above) = (stacks.middle() - 64, stacks.top() - 64);
    let mut stack = StackMemory::new();
    for by_frame_pointer in [true, false] {
        stack.begin(sp);
        assert!(is_far(sp, above));
        assert!(!by_frame_pointer || stack.goes_far(sp, above, false));
        assert_eq!((stack.read(above), stack.range_of_walk()), (Some(0), None));
        stack.begin(sp);
        assert_eq!(stack.range().hi, stacks.middle());
    }
    // A large frame is on the same one.
    stack.begin(sp);
    assert!(stack.goes_far(sp, above, true));
    assert_eq!((stack.range_of_walk().is_some(), stack.read(above - WORD)), (true, Some(0)));
    assert!(stack.range().hi > above);
}

#[test]
fn a_walk_comes_to_no_stack_twice() {
    let stacks = Stacks::new();
    let mut stack = StackMemory::new();
    let at = |page: u64| stacks.0 + page * PAGE + 64;
    stack.begin(at(20));
    assert!(!stack.goes_far(at(21), at(19), true), "by sp a caller lies above");
    // To a lower one, to one above both, and back to where it was.
    assert!(stack.goes_far(at(21), at(2), false));
    assert!(!stack.goes_far(at(3), at(20), false));
    stack.begin(at(20));
    assert!(stack.goes_far(at(21), at(2), false) && stack.goes_far(at(3), at(30), false));
    assert!(!stack.goes_far(at(31), at(31), false) && !stack.goes_far(at(31), at(2), false));
    assert!(stack.goes_far(at(31), at(22), false), "between two is another one");
    stack.begin(at(20));
    assert!(stack.goes_far(at(21), at(2), false), "the next walk");
    assert_eq!(stack.read(at(2)), Some(0));
}
