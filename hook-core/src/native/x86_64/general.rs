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

use grapnel_arch::x86_64::{Flow, Inst, MAX_INST_LEN, decode, is_general, stores_by_stack_pointer};
use grapnel_relocator::CodeAddr;

use super::{entry::OWN, machine::ASIDE, returns::RETURNING};
use crate::{listen::Link, memory::pages::Pages};

/// How many instructions are looked at.
const MOST: usize = 512;

/// Whether the function with this extent uses general registers only, and calls nothing.
///
/// All of the extent is looked at, and not only what branches lead to: a restartable sequence is aborted by the kernel, and a
/// fault caught by a handler, to places that nothing else leads to.
pub(crate) fn leaves_vectors_alone(code: &Pages<'_>, function: usize, extent: &Range<usize>) -> bool {
    let extent = extent.start as u64..extent.end as u64;
    let mut look = Look { code, whose: Whose::Listener(extent.clone()), seen: BTreeSet::new() };
    let mut at = extent.start;
    let mut all = extent.contains(&(function as u64)) && look.follow(function as u64);
    while all && at < extent.end {
        all = look.follow(at);
        at += look.inst(at).map_or(1, |inst| inst.bytes().len() as u64);
    }
    all
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
            // The second is reached by no link for which nothing is saved.
            let over = [ASIDE, Own(Link::tell_guarded as *const ())].map(Own::address);
            let mut look = Look { code, whose: Whose::Ours(over), seen: BTreeSet::new() };
            let all = OWN.iter().chain(&[RETURNING]).all(|function| look.follow(function.address()));
            KNOWN.store(if all { YES } else { NO }, Relaxed);
            all
        }
        known => known == YES,
    }
}

/// Whose code is looked at.
enum Whose {
    /// A listener's: all of it lies here, and calls nothing.
    Listener(Range<u64>),
    /// This library's: what it calls is looked at as well, but for these.
    Ours([u64; 2]),
}

struct Look<'a> {
    code: &'a Pages<'a>,
    whose: Whose,
    /// The instructions that were looked at.
    seen: BTreeSet<u64>,
}

impl Look<'_> {
    fn inst(&self, at: u64) -> Option<Inst> {
        decode(CodeAddr(at), self.code.bytes(at as usize, MAX_INST_LEN).as_slice()).ok()
    }

    /// Follows all code from a place, and says whether each instruction leaves the vectors alone.
    fn follow(&mut self, start: u64) -> bool {
        let mut open = vec![start];
        while let Some(mut at) = open.pop() {
            let mut before = None;
            while self.seen.insert(at) {
                let Some(inst) = self.inst(at) else { return false };
                let here = match &self.whose {
                    Whose::Listener(extent) => extent.contains(&at),
                    Whose::Ours(_) => true,
                };
                if self.seen.len() > MOST || !here || !self.leaves_alone(&inst, before.as_ref()) {
                    return false;
                }
                open.extend(
                    inst.flow().target().map(|target| target.0).filter(|to| !self.is_passed_over(*to)),
                );
                if inst.flow().is_exit() {
                    break;
                }
                at = inst.next().0;
                before = Some(inst);
            }
        }
        true
    }

    fn is_passed_over(&self, at: u64) -> bool {
        matches!(self.whose, Whose::Ours(over) if over.contains(&at))
    }

    fn leaves_alone(&self, inst: &Inst, before: Option<&Inst>) -> bool {
        let ours = matches!(self.whose, Whose::Ours(_));
        match inst.flow() {
            // After a store to the stack it is a jump, as some engines write it over a function's start.
            Flow::Return => before.is_none_or(|before| !stores_by_stack_pointer(before)),
            Flow::Next | Flow::Jump { .. } | Flow::Cond { .. } | Flow::Counter { .. } | Flow::Undefined => {
                is_general(inst)
            }
            Flow::Call { .. } => ours,
            _ => false,
        }
    }
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
        let extent = extent::of(&maps, function).unwrap();
        leaves_vectors_alone(&code, function, &extent)
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
            leaves_vectors_alone(&Pages::new(&view), at, &(at..at + code.len()))
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
        // ret; addps xmm0, xmm1; ret: what nothing leads to.
        assert!(!judge(&[0xc3, 0x0f, 0x58, 0xc1, 0xc3]));
        // push 0x1000; mov dword [rsp + 4], 1; ret
        assert!(!judge(&[0x68, 0, 0x10, 0, 0, 0xc7, 0x44, 0x24, 4, 1, 0, 0, 0, 0xc3]));
        // Out of the function: by a jump, and by running on.
        assert!(!judge(&[0xeb, 0x40]));
        assert!(!judge(&[0x90; LEN]));
    }
}
