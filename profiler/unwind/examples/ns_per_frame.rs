//! How long a walk takes per frame: reused, new, and by full CFI.
//!
//! `cargo run --release -p grapnel-unwind --example ns_per_frame`

use grapnel_unwind::{
    CfiScratch, Config, Frame, ModuleInfo, ModuleTable, NodeId, ProgramHeader, Registers, TableResolver,
    Walker,
};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::time::Instant;

core::arch::global_asm!(
    ".globl grapnel_example_capture",
    "grapnel_example_capture:",
    ".cfi_startproc",
    "mov rax, [rsp]",
    "mov [rdi], rax",
    "lea rax, [rsp + 8]",
    "mov [rdi + 8], rax",
    "mov [rdi + 16], rbp",
    "mov [rdi + 24], rbx",
    "mov [rdi + 32], r12",
    "mov [rdi + 40], r13",
    "mov [rdi + 48], r14",
    "mov [rdi + 56], r15",
    "ret",
    ".cfi_endproc",
);

unsafe extern "C" {
    fn grapnel_example_capture(registers: *mut Registers);
}

fn loaded_modules() -> ModuleTable {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, list: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid record, and the argument is the list below.
        unsafe {
            let list = &mut *list.cast::<Vec<(u64, &'static [ProgramHeader])>>();
            let phdrs = (*info).dlpi_phdr.cast::<ProgramHeader>();
            list.push(((*info).dlpi_addr, std::slice::from_raw_parts(phdrs, (*info).dlpi_phnum.into())));
        }
        0
    }
    let mut list: Vec<(u64, &'static [ProgramHeader])> = Vec::new();
    // SAFETY: no module is unloaded while this program runs.
    unsafe {
        libc::dl_iterate_phdr(Some(add), (&raw mut list).cast());
        ModuleTable::build(list.iter().zip(1..).map(|((bias, phdrs), id)| ModuleInfo {
            id,
            bias: *bias,
            phdrs,
        }))
    }
}

thread_local! {
    /// The registers a few frames nearer to the root than the leaf, at another call site.
    static BELOW: Cell<Registers> = Cell::default();
}

macro_rules! functions {
    ($($name:ident $size:literal)*) => {
        $(#[inline(never)]
        fn $name(depth: u64, seed: u64, bench: &mut dyn FnMut()) {
            let mut local = [depth as u8; $size];
            black_box(&mut local);
            below(depth, seed, bench);
            black_box(&mut local);
        })*
        const FUNCTIONS: &[fn(u64, u64, &mut dyn FnMut())] = &[$($name),*];
    };
}

functions! { f0 8 f1 16 f2 24 f3 40 f4 64 f5 72 f6 100 f7 128 f8 8 f9 200 f10 300 f11 24 f12 48 f13 56 f14 80 f15 16 }

#[inline(never)]
fn below(depth: u64, seed: u64, bench: &mut dyn FnMut()) {
    if depth == 0 {
        let mut registers = Registers::default();
        // SAFETY: writes the registers.
        unsafe { grapnel_example_capture(&raw mut registers) };
        BELOW.set(registers);
        bench();
        black_box(());
        return;
    }
    let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    FUNCTIONS[(seed >> 60) as usize](depth - 1, seed, bench);
    black_box(());
}

/// The best of several runs, in ns per call.
fn time(calls: u32, mut f: impl FnMut()) -> f64 {
    let run = |_| {
        let start = Instant::now();
        for _ in 0..calls {
            f();
        }
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    };
    (0..15).map(run).fold(f64::INFINITY, f64::min)
}

fn main() {
    let table = loaded_modules();
    let mut scratch = CfiScratch::new();
    println!("ns per walk that reuses all, per frame of it, per walk that changes a few leaf frames,");
    println!("per frame of a walk that reuses none, per frame by full CFI");
    println!(
        "{:>8} {:>14} {:>14} {:>14} {:>14} {:>14}",
        "frames", "reused walk", "reused frame", "changed walk", "new frame", "full CFI"
    );
    for depth in [2, 5, 20, 100, 450] {
        below(depth, depth, &mut || {
            let mut walker = Walker::new(Config::default()).expect("memory");
            let mut registers = Registers::default();
            // SAFETY: writes the registers.
            unsafe { grapnel_example_capture(&raw mut registers) };
            let mut frames = 0u32;
            let mut count = |_: NodeId, _: NodeId, _: Frame| frames += 1;
            let resolver = &mut TableResolver::new(&table, &mut scratch);
            walker.walk(&registers, resolver, &mut count);
            let mut none = |_: NodeId, _: NodeId, _: Frame| ();
            let reused = time(20_000, || {
                black_box(walker.walk(black_box(&registers), resolver, &mut none));
            });
            let other = BELOW.get();
            let turns = time(20_000, || {
                black_box(walker.walk(black_box(&other), resolver, &mut none));
                black_box(walker.walk(black_box(&registers), resolver, &mut none));
            });
            let new = time(5_000, || {
                black_box(walker.walk_unmemoised(black_box(&registers), resolver, &mut none));
            });
            let full = time(20, || {
                black_box(walker.walk_by_cfi(black_box(&registers), resolver, &mut none));
            });
            let per = |ns: f64| ns / f64::from(frames);
            println!(
                "{frames:>8} {reused:>14.0} {:>14.2} {:>14.0} {:>14.2} {:>14.0}",
                per(reused),
                turns / 2.0,
                per(new),
                per(full)
            );
        });
    }
}
