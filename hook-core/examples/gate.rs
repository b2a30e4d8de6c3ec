//! Counts the large blocks that malloc is asked for. What is asked for smaller ones passes by a gate: a comparison in front of malloc's own
//! first instructions, and no call of anything else.

use std::{
    hint::black_box,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*},
};

use grapnel_hook::{Error, Liveness, Options, Transaction, way_out};

static ORIGINAL: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static LARGE: AtomicUsize = AtomicUsize::new(0);

type Malloc = unsafe extern "C" fn(usize) -> *mut libc::c_void;

unsafe extern "C" fn counting_malloc(size: usize) -> *mut libc::c_void {
    LARGE.fetch_add(1, Relaxed);
    // SAFETY: it was stored before the first call could come here, and has this type.
    unsafe { std::mem::transmute::<*mut (), Malloc>(ORIGINAL.load(Acquire))(size) }
}

/// Code that leaves by its way out if the first argument is 4096 or more, and else goes on behind itself.
fn for_large(function: *const ()) -> Option<Vec<u8>> {
    let back = way_out(function) as i32;
    if cfg!(target_arch = "x86_64") {
        // cmp rdi, 4096; jae
        let compare = [0x48, 0x81, 0xff, 0x00, 0x10, 0x00, 0x00, 0x0f, 0x83];
        Some([&compare[..], &(-13 - back).to_le_bytes()].concat())
    } else if cfg!(target_arch = "aarch64") {
        // cmp x0, #4096; b.hs
        let branch = 0x5400_0002 | (((-4 - back) / 4) as u32 & 0x7_ffff) << 5;
        Some([0xf140_041f_u32, branch].into_iter().flat_map(u32::to_le_bytes).collect())
    } else {
        // Without one the replacement gets all calls.
        None
    }
}

fn main() -> Result<(), Error> {
    let malloc = libc::malloc as *const ();
    let gate = for_large(malloc);
    let expected = if gate.is_some() { 3 } else { 1003 };
    let mut transaction = Transaction::new();
    let (to, options) = (counting_malloc as *const (), Options::default());
    let id = transaction.replace_gated(malloc, to, options, gate.unwrap_or_default());
    let prepared = transaction.prepare();
    ORIGINAL.store(prepared.original(id)?.cast_mut(), Release);
    // SAFETY: the program has one thread, the types agree, and the gate changes nothing but flags.
    let mut hook = unsafe { prepared.commit(Liveness::SingleThreaded) }.remove(0)?;

    let before = LARGE.load(Relaxed);
    for _ in 0..1000 {
        drop(black_box(Box::new([0_u8; 100])));
    }
    for size in [4096, 5000, 1 << 20] {
        // SAFETY: a block that is given back at once.
        unsafe { libc::free(black_box(libc::malloc(size))) };
    }
    let found = LARGE.load(Relaxed) - before;

    // SAFETY: the program has one thread.
    unsafe { hook.remove(Liveness::SingleThreaded) }?;
    println!("{found} large blocks");
    assert_eq!(found, expected);
    Ok(())
}
