//! Whether code leaves the vector registers alone, so that a stub needn't save them for it.
//!
//! Saving and loading sixteen of them takes a listened call as long as all the rest. Most listeners count, compare or note
//! something, and the compiler has used general registers only: then nothing has to be saved. What decides is the code itself,
//! all of it, as it is when it is attached.
//!
//! # Safety
//! Nothing here is unsafe. A listener's code is looked at within the function's extent only, and may call nothing: what else a
//! program runs can be changed later, by a hook on it for one.

use alloc::{collections::BTreeSet, vec};
use core::{
    ops::Range,
    sync::atomic::{AtomicU8, Ordering::Relaxed},
};

use grapnel_arch::x86_64::{Flow, MAX_INST_LEN, decode, is_general};
use grapnel_relocator::CodeAddr;

use super::{entry::OWN, machine::ASIDE, returns::RETURNING};
use crate::{listen::Link, memory::pages::Pages};

/// How many instructions are looked at.
const MOST: usize = 512;

/// Whether the function with this extent uses general registers only, and calls nothing.
pub(crate) fn leaves_vectors_alone(code: &Pages<'_>, function: usize, extent: &Range<usize>) -> bool {
    let step = |at: u64, is_call: bool| match extent.contains(&(at as usize)) && !is_call {
        true => Some(Step::Into),
        false => None,
    };
    is_general_from(code, function as u64, step)
}

/// The same of this library's own code that runs for listeners, apart from what saves the registers itself. It depends on how
/// the library was compiled: without optimisation, every copy of two words goes by a vector register.
pub(crate) fn routines_leave_vectors_alone(code: &Pages<'_>) -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    match KNOWN.load(Relaxed) {
        UNKNOWN => {
            // Those that are reached by no link for which nothing is saved.
            let over = [ASIDE, Own(Link::tell_guarded as *const ())].map(Own::address);
            let step = |at, _| Some(if over.contains(&at) { Step::Over } else { Step::Into });
            let mut own = OWN.iter().chain(&[RETURNING]);
            let all = own.all(|function| is_general_from(code, function.address(), step));
            KNOWN.store(if all { YES } else { NO }, Relaxed);
            all
        }
        known => known == YES,
    }
}

/// What to do about a place that is jumped to or called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is looked at.
    Into,
    /// It counts as an instruction that leaves the vectors alone.
    Over,
}

/// Follows all code from a place. `step` is asked for each place that code goes on at, and whether that is by a call; where it
/// has no answer, the answer to all is no.
fn is_general_from(code: &Pages<'_>, start: u64, step: impl Fn(u64, bool) -> Option<Step>) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![start];
    while let Some(mut at) = open.pop() {
        while seen.insert(at) {
            let bytes = code.bytes(at as usize, MAX_INST_LEN);
            let Ok(inst) = decode(CodeAddr(at), bytes.as_slice()) else { return false };
            if seen.len() > MOST || !is_general(&inst) || step(at, false).is_none() {
                return false;
            }
            let target = match inst.flow() {
                Flow::Next => None,
                Flow::Jump { target } | Flow::Cond { target, .. } | Flow::Counter { target, .. } => {
                    Some((target.0, false))
                }
                Flow::Call { target } => Some((target.0, true)),
                Flow::Return | Flow::Undefined => break,
                _ => return false,
            };
            if let Some((target, is_call)) = target {
                match step(target, is_call) {
                    Some(Step::Into) => open.push(target),
                    Some(Step::Over) => {}
                    None => return false,
                }
            }
            if inst.flow().is_exit() {
                break;
            }
            at = inst.next().0;
        }
    }
    true
}

/// A function of the library's own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own(pub(super) *const ());

// SAFETY: it is an address only.
unsafe impl Sync for Own {}

impl Own {
    fn address(self) -> u64 {
        self.0 as usize as u64
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;
    use crate::{
        Listener, extent,
        listen::{Entry, Exit},
        memory::{maps::Maps, view::MemoryView},
    };

    static CALLS: AtomicU64 = AtomicU64::new(0);

    unsafe extern "C" fn counts(call: &mut Entry, _: *mut core::ffi::c_void) {
        if call.registers().rdi != 0 {
            CALLS.fetch_add(call.registers().rsi, Relaxed);
        }
    }

    unsafe extern "C" fn looks(call: &mut Entry, _: *mut core::ffi::c_void) {
        CALLS.store(call.vector(0).map_or(0, |value| value[0]), Relaxed);
    }

    unsafe extern "C" fn changes(call: &mut Exit, _: *mut core::ffi::c_void) {
        call.set_vector(0, [1, 2]);
    }

    unsafe extern "C" fn adds(call: &mut Exit, _: *mut core::ffi::c_void) {
        let sum = f64::from_bits(CALLS.load(Relaxed)) + f64::from_bits(call.result());
        CALLS.store(sum.to_bits(), Relaxed);
    }

    unsafe extern "C" fn calls(_: &mut Entry, _: *mut core::ffi::c_void) {
        // SAFETY: the function has no preconditions.
        unsafe { libc::getppid() };
    }

    fn is_left_alone(function: usize) -> bool {
        let (view, maps) = (MemoryView::open(), Maps::read().unwrap());
        let code = Pages::new(&view);
        extent::of(&maps, function).is_some_and(|extent| leaves_vectors_alone(&code, function, &extent))
    }

    /// Only then is there optimised code to look at.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "without optimisation vector registers are everywhere")]
    fn the_library_itself_leaves_them_alone() {
        let view = MemoryView::open();
        assert!(routines_leave_vectors_alone(&Pages::new(&view)));
        assert!(is_left_alone(counts as *const () as usize));
    }

    #[test]
    fn functions_that_use_or_name_vectors_are_known() {
        assert!(!is_left_alone(looks as *const () as usize));
        assert!(!is_left_alone(changes as *const () as usize));
        assert!(!is_left_alone(adds as *const () as usize));
        assert!(!is_left_alone(calls as *const () as usize));
        let _ = Listener::new(core::ptr::null_mut()).on_enter(looks).on_leave(changes);
    }

    #[test]
    fn all_ways_through_code_are_followed() {
        const LEN: usize = 16;
        let judge = |code: &[u8]| {
            let mut bytes = [0xcc; LEN];
            bytes[..code.len()].copy_from_slice(code);
            let at = bytes.as_ptr() as usize;
            let view = MemoryView::open();
            leaves_vectors_alone(&Pages::new(&view), at, &(at..at + LEN))
        };
        // inc dword [rdi]; ret
        assert!(judge(&[0xff, 0x07, 0xc3]));
        // 1: dec edi; jne 1b; ret
        assert!(judge(&[0xff, 0xcf, 0x75, 0xfc, 0xc3]));
        // je 1f; ret; 1: addps xmm0, xmm1; ret
        assert!(!judge(&[0x74, 1, 0xc3, 0x0f, 0x58, 0xc1, 0xc3]));
        // je 1f; ret; 1: ud2
        assert!(judge(&[0x74, 1, 0xc3, 0x0f, 0x0b]));
        // jmp rax; call rax; call to within; syscall; int3
        assert!(!judge(&[0xff, 0xe0]));
        assert!(!judge(&[0xff, 0xd0, 0xc3]));
        assert!(!judge(&[0xe8, 0, 0, 0, 0, 0xc3]));
        assert!(!judge(&[0x0f, 0x05, 0xc3]));
        assert!(!judge(&[0xcc]));
        // Out of the function: by a jump, and by running on.
        assert!(!judge(&[0xeb, 0x40]));
        assert!(!judge(&[0x90; LEN]));
    }
}
