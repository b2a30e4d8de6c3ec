//! Code in pages that their owner may write while it runs, as compilers at run time have them.

use std::{
    fs, ptr,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use grapnel_hook::{Liveness, PatchWay, Transaction};

use crate::{code, function, samples};

const PAGE: usize = 4096;
const ALL: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;

extern "C" fn plus_100(x: u64) -> u64 {
    x + 100
}

/// Pages with two copies of a function: in the middle of the first page, and across the end of it.
struct Pages(usize);

impl Pages {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // Between pages that nobody may touch: an emulator's list of mappings omits neighbours that differ in rights only.
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(ptr::null_mut(), 5 * PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let pages = Self(at as usize + PAGE);
        // SAFETY: three pages of that mapping.
        assert_eq!(unsafe { libc::mprotect(pages.0 as *mut _, 3 * PAGE, ALL) }, 0);
        let sample = samples::all().into_iter().find(|sample| sample.name == "frame").unwrap();
        let bytes = code::bytes(sample.at, 48);
        for place in [pages.inside(), pages.across()] {
            // SAFETY: the bytes fit into the mapping, and nothing runs them.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), code::start(place).cast_mut().cast(), 48) };
        }
        pages
    }

    fn pointer(&self, offset: usize) -> *const () {
        let sample = samples::all().into_iter().find(|sample| sample.name == "frame").unwrap();
        // On Arm, bit 0 of a function's address names its instruction set.
        (self.0 + offset + (sample.at as usize - code::start(sample.at) as usize)) as *const ()
    }

    fn inside(&self) -> *const () {
        self.pointer(64)
    }

    fn across(&self) -> *const () {
        self.pointer(PAGE - if cfg!(target_arch = "x86_64") { 2 } else { 4 })
    }

    /// A word that the owner writes.
    fn word(&self) -> &AtomicU32 {
        // SAFETY: a word of the mapping, which stays as long as this value, behind the function.
        unsafe { &*((self.0 + 512) as *const AtomicU32) }
    }

    /// Those of each page. Mappings tell no more: an emulator divides them where it guards what it has translated.
    fn rights(&self) -> Vec<String> {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let of_line = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
            Some((start..end, String::from(&rest[..4])))
        };
        let lines: Vec<_> = maps.lines().filter_map(of_line).collect();
        let of_page = |at: usize| lines.iter().find(|(range, _)| range.contains(&at)).unwrap().1.clone();
        (0..3).map(|page| of_page(self.0 + page * PAGE)).collect()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing runs it any more.
        assert_eq!(unsafe { libc::munmap((self.0 - PAGE) as *mut _, 5 * PAGE) }, 0);
    }
}

fn hook(at: *const (), liveness: Liveness, way: PatchWay) {
    let before = code::bytes(at, 48);
    let mut transaction = Transaction::new();
    if liveness == Liveness::Live {
        transaction = transaction.live();
    }
    transaction.replace(at, plus_100 as *const ());
    // SAFETY: no other thread runs the function, and the types agree.
    let mut hook = unsafe { transaction.commit(liveness) }.remove(0).unwrap();
    assert_eq!(hook.way(), way);
    assert_eq!((function(at)(1), function(hook.original())(1)), (101, 2));
    // SAFETY: as above.
    unsafe { hook.remove(liveness) }.unwrap();
    assert_eq!((function(at)(1), code::bytes(at, 48)), (2, before));
}

/// The owner writes to the page all the while, and it has the rights that it had.
fn owner_goes_on(way: PatchWay) {
    let pages = Pages::new();
    let rights = pages.rights();
    let (word, done) = (pages.word(), AtomicBool::new(false));
    /// Also if an assertion fails, so that the owner ends.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        scope.spawn(|| {
            while !done.load(Relaxed) {
                word.fetch_add(1, Relaxed);
            }
        });
        while word.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        for _ in 0..20 {
            for liveness in [Liveness::SingleThreaded, Liveness::Live] {
                hook(pages.inside(), liveness, way);
                hook(pages.across(), liveness, way);
                assert_eq!(pages.rights(), rights);
            }
        }
    });
}

/// A page that may be written, and behind it one that may not.
fn two_kinds(whole: bool) {
    let pages = Pages::new();
    let fixed = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: nothing writes there any more.
    assert_eq!(unsafe { libc::mprotect((pages.0 + PAGE) as *mut _, PAGE, fixed) }, 0);
    let rights = pages.rights();
    hook(pages.across(), Liveness::SingleThreaded, if whole { PatchWay::ProcMem } else { PatchWay::Protect });
    assert_eq!(pages.rights(), rights);
}

pub(crate) fn run() {
    // An emulator may not notice what is written through the file.
    if cfg!(target_arch = "x86_64") {
        owner_goes_on(PatchWay::ProcMem);
        two_kinds(true);
    }
    crate::without_proc_mem(|| {
        owner_goes_on(PatchWay::InPlace);
        // Elsewhere the patch is one aligned word, which lies in one page.
        if cfg!(target_arch = "x86_64") {
            two_kinds(false);
        }
        true
    });
}
