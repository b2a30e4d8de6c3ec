//! The code that is written for each thing that is attached to a function.
//!
//! A jump stub goes where a word in memory says. The word is all that changes when something is attached or removed: one
//! store, and whoever comes by goes the old way or the new one. At a function's entry it may change R12 (AAPCS32, 6.1.1); in
//! the middle of one it changes no register.
//!
//! A link stub jumps to the routine of [`super::entry`] that tells a listener, with the address of its literals in R12. The
//! routine goes on through the stub's word. In the middle of a function the stub makes room for three words first, and
//! keeps R12 and LR in two of them.
//!
//! # Safety
//! The literals are read at an address that only a link stub gives. A stub is freed when no such address is left.

use grapnel_relocator::Isa;

use crate::native::{LinkKind, StubKind};

/// What the code behind a probe begins with: nothing, since no stub leaves anything on the stack.
pub(crate) const AFTER_PROBE: &[u8] = &[];

/// What stubs are written in.
pub(crate) const STUBS: Isa = Isa::A32;

pub(crate) const JUMP_STUB_LEN: usize = 24;
pub(crate) const LINK_STUB_LEN: usize = 32;

/// The literals of a link stub, counted from the first, which is the routine's address.
pub(super) const WORD: usize = 4;
const LINK: usize = 8;
const SITE: usize = 12;

/// A stub that goes where the word at `word` says.
pub(crate) fn jump_stub(kind: StubKind, _: u64, word: u64) -> Option<[u8; JUMP_STUB_LEN]> {
    let word = u32::try_from(word).ok()?;
    Some(match kind {
        StubKind::Entry => bytes(&[
            0xe59f_c000, // ldr ip, the literal
            0xe59c_f000, // ldr pc, [ip]
            word,
        ]),
        StubKind::Inside => bytes(&[
            0xe92d_0003, // push {r0, r1}
            0xe59f_0008, // ldr r0, the literal
            0xe590_0000, // ldr r0, [r0]
            0xe58d_0004, // str r0, [sp, #4]
            0xe8bd_8001, // pop {r0, pc}
            word,
        ]),
    })
}

/// A stub that has `routine` tell `link`, and go on where the word at `word` says.
pub(crate) fn link_stub(
    kind: LinkKind,
    _: u64,
    word: u64,
    routine: u64,
    link: u64,
    site: u64,
) -> Option<[u8; LINK_STUB_LEN]> {
    let [word, routine, link, site] = [word, routine, link, site].map(|value| value as u32);
    Some(match kind.stub {
        StubKind::Entry => bytes(&[
            0xe1a0_c00f, // mov ip, pc: the literals
            0xe59c_f000, // ldr pc, the first of them
            routine,
            word,
            link,
            site,
        ]),
        StubKind::Inside => bytes(&[
            0xe24d_d004, // sub sp, sp, #4
            0xe92d_5000, // push {ip, lr}
            0xe1a0_c00f, // mov ip, pc: the literals
            0xe59c_f000, // ldr pc, the first of them
            routine,
            word,
            link,
            site,
        ]),
    })
}

fn bytes<const N: usize>(words: &[u32]) -> [u8; N] {
    let mut out = [0; N];
    for (slot, byte) in out.iter_mut().zip(words.iter().flat_map(|word| word.to_le_bytes())) {
        *slot = byte;
    }
    out
}

/// The link literal of the stub with these literals.
///
/// # Safety
/// `at` was given by a link stub.
pub(crate) unsafe fn link_of_stub(at: u64) -> u64 {
    // SAFETY: the stub's literals are there, and the stub stays while its address is somewhere.
    u64::from(unsafe { (at as usize as *const u32).byte_add(LINK).read() })
}

/// Its site literal: where the probe is that the stub serves.
///
/// # Safety
/// As [`link_of_stub`].
pub(crate) unsafe fn site_of_stub(at: u64) -> u64 {
    // SAFETY: as above.
    u64::from(unsafe { (at as usize as *const u32).byte_add(SITE).read() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_where_the_routines_look_for_them() {
        for (kind, literals) in [(StubKind::Entry, 8), (StubKind::Inside, 16)] {
            let code = link_stub(LinkKind::plain(kind), 0x1000, 6, 7, 8, 9).unwrap();
            let at = code[literals..].as_ptr() as u64;
            // SAFETY: the code lies here as in a stub.
            unsafe {
                assert_eq!((link_of_stub(at), site_of_stub(at)), (8, 9));
            }
            assert_eq!(code[literals..][..8], [7, 0, 0, 0, 6, 0, 0, 0]);
        }
    }
}
