//! A backtrace at every instruction that runs while hooked functions are called.
//!
//! Programs can't have the processor trap behind each instruction here. Instead a breakpoint goes to wherever the
//! next instruction may be.

use std::{
    arch::global_asm,
    ffi::c_void,
    ops::Range,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering::*},
};

use grapnel_hook::HookSet;

use super::{
    backtrace::{self, Seen},
    handle, regions,
    samples::{self, Function},
};

/// `brk #0`.
const BREAK: u32 = 0xd420_0000;

/// Where breakpoints are, at most so many at once, and what was there.
static AT: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static WAS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// Where interrupted code was.
pub(crate) fn pc(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}

fn write(at: usize, word: u32) {
    unsafe extern "C" {
        fn __clear_cache(start: *mut c_void, end: *mut c_void);
    }
    // SAFETY: code that `run` has made writable, at which this thread isn't.
    unsafe {
        (at as *mut u32).write_volatile(word);
        __clear_cache(at as *mut c_void, (at + 4) as *mut c_void);
    }
}

fn take_out() {
    for (at, was) in AT.iter().zip(&WAS) {
        match at.swap(0, Relaxed) {
            0 => {}
            at => write(at, was.load(Relaxed)),
        }
    }
}

fn put_in(places: [Option<usize>; 2]) {
    for ((at, was), place) in AT.iter().zip(&WAS).zip(places) {
        if let Some(place) = place {
            // SAFETY: an instruction that is about to be run.
            was.store(unsafe { (place as *const u32).read_volatile() }, Relaxed);
            at.store(place, Relaxed);
            write(place, BREAK);
        }
    }
}

/// Whether a call is stepped into: samples and the code of hooks. Others are stepped over.
fn is_entered(at: usize) -> bool {
    samples::around(at) || backtrace::is_inside(at)
}

/// Where a thread may be behind an instruction. `None` where stepping ends.
fn next(context: &libc::ucontext_t) -> [Option<usize>; 2] {
    let at = pc(context);
    // SAFETY: the instruction at which the thread is.
    let word = unsafe { (at as *const u32).read_volatile() };
    let behind = Some(at + 4);
    // A displacement in `bits` bits from bit `from` on, in instructions.
    let to = |from: u32, bits: u32| {
        let field = ((word << (32 - from - bits)).cast_signed() >> (32 - bits)) as isize;
        Some(at.wrapping_add_signed(4 * field))
    };
    let register = || Some(context.uc_mcontext.regs[(word >> 5 & 31) as usize] as usize);
    let called = |to: Option<usize>| [to.filter(|to| is_entered(*to)), behind];
    match word {
        _ if word & 0xfc00_0000 == 0x1400_0000 => [to(0, 26), None], // b
        _ if word & 0xfc00_0000 == 0x9400_0000 => called(to(0, 26)), // bl
        _ if word & 0xff00_0010 == 0x5400_0000 => [to(5, 19), behind], // b.cond
        _ if word & 0x7e00_0000 == 0x3400_0000 => [to(5, 19), behind], // cbz, cbnz
        _ if word & 0x7e00_0000 == 0x3600_0000 => [to(5, 14), behind], // tbz, tbnz
        _ if word & 0xffff_fc1f == 0xd61f_0000 => [register(), None], // br
        _ if word & 0xffff_fc1f == 0xd63f_0000 => called(register()), // blr
        _ if word & 0xffff_fc1f == 0xd65f_0000 => [register(), None], // ret
        _ => [behind, None],
    }
    .map(|place| place.filter(|at| !caller().contains(at)))
}

unsafe extern "C" fn trapped(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's description of what was interrupted.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    take_out();
    backtrace::take(pc(context));
    put_in(next(context));
}

// Calls a function.
global_asm!(
    ".globl seen_caller",
    "seen_caller:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, sp",
    "mov x9, x0",
    "mov x0, x1",
    "blr x9",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "ret",
    ".cfi_endproc",
    ".globl seen_caller_end",
    "seen_caller_end:",
);

// Calls what throws.
global_asm!(
    ".globl seen_thrown_through",
    "seen_thrown_through:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, sp",
    "bl {throws}",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "ret",
    ".cfi_endproc",
    throws = sym super::thrown::throws,
);

/// Where the call is in that.
pub(crate) const CALL: usize = 8;

unsafe extern "C" {
    fn seen_caller(function: Function, x: u64) -> u64;
    fn seen_caller_end();
}

fn caller() -> Range<usize> {
    seen_caller as *const () as usize..seen_caller_end as *const () as usize
}

/// Changes the rights of all code of this program, and of what is made for hooks.
fn set_rights(code: &[Range<usize>], rights: i32) {
    for range in code {
        // SAFETY: the code can be run before, meanwhile and afterwards.
        assert_eq!(unsafe { libc::mprotect(range.start as *mut c_void, range.len(), rights) }, 0);
    }
}

/// Steps through all samples.
pub(crate) fn run(set: &HookSet) -> Seen {
    let regions = regions(set);
    backtrace::begin(caller(), regions.clone());
    handle(libc::SIGTRAP, trapped);
    let mut code = regions;
    // A mapping whose pages have had other rights may be listed in parts.
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let address = |text: &str| usize::from_str_radix(text, 16).unwrap();
    for line in maps.lines().filter(|line| line.ends_with(program)) {
        let mut fields = line.split(' ');
        let (start, end) = fields.next().and_then(|range| range.split_once('-')).unwrap();
        if fields.next().is_some_and(|rights| rights.contains('x')) {
            code.push(address(start)..address(end));
        }
    }
    set_rights(&code, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
    for sample in samples::all() {
        for x in [0, 1] {
            put_in([Some(sample.at() as usize), None]);
            // SAFETY: the samples have this type.
            assert_eq!(unsafe { seen_caller(sample.function, x) }, x + 1);
        }
    }
    set_rights(&code, libc::PROT_READ | libc::PROT_EXEC);
    backtrace::end()
}
